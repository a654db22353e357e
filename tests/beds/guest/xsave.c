/* Loaded before the C library of a User-mode Linux of Linux 6, on processors with AMX.
 *
 * There PTRACE_SETREGSET of NT_X86_XSTATE wants the whole XSAVE area, of 11 KiB, and says EFAULT to
 * a shorter one. User-mode Linux has room for less, and panics: "userspace - ptrace set fp regs
 * failed". So the whole area is read, its part laid over it, and all of that written. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

long ptrace(enum __ptrace_request request, ...)
{
    static long (*next)(int, ...);
    static char area[65536] __attribute__((aligned(64)));
    va_list rest;
    long pid;
    void *kind, *data;

    va_start(rest, request);
    pid = va_arg(rest, long);
    kind = va_arg(rest, void *);
    data = va_arg(rest, void *);
    va_end(rest);
    if (!next)
        next = dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && (long)kind == NT_X86_XSTATE) {
        struct iovec *part = data, whole = {area, sizeof area};

        if (next(PTRACE_GETREGSET, pid, kind, &whole) == 0 && whole.iov_len > part->iov_len) {
            memcpy(area, part->iov_base, part->iov_len);
            return next(request, pid, kind, &whole);
        }
    }
    return next(request, pid, kind, data);
}
