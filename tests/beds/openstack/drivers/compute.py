"""nova-compute with the driver of the bed: Nova loads drivers only from its package nova.virt."""
import os
import sys

# First: it patches the standard library.
import nova.cmd.compute
import nova.virt

nova.virt.__path__.append(os.path.dirname(os.path.abspath(__file__)))
sys.argv[0] = "nova-compute"
sys.exit(nova.cmd.compute.main())
