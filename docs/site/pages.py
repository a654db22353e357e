"""Adds the pages of the site: all Markdown files of the repository, and the files that they link to."""

import re
import subprocess
from os.path import abspath, dirname, isfile, join, normpath, splitext

from mkdocs.structure.files import File

TOP = abspath(join(dirname(__file__), "../.."))


def on_files(files, config):
    listed = subprocess.check_output(["git", "ls-files", "*.md"], cwd=TOP, text=True)
    pages = listed.splitlines()
    linked = set()
    for page in pages:
        with open(join(TOP, page)) as content:
            targets = re.findall(r"\]\(([^):#]+)", content.read())
        linked.update(normpath(join(dirname(page), target)) for target in targets)
    for path in linked.union(pages):
        source = join(TOP, path)
        if isfile(source):
            file = File.generated(config, path, abs_src_path=source)
            # A web server may send a script or source file as a download.
            if splitext(path)[1] not in (".md", ".png", ".svg"):
                file.dest_uri += ".txt"
            files.append(file)
    return files
