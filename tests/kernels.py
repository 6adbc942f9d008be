"""How nbval starts its kernels: over sockets in a folder of their own, and in that folder alone.

A kernel is told five TCP ports that are free, and binds them a second or two later. Whatever takes
one of them in between, such as the other worker's kernel, ends it at its start. A socket in a new
folder is nobody else's. IPython's own folder is there too, so that neither start-up files nor a
history that another kernel has locked matter.

Used by ``pytest -p tests.kernels --nbval``.
"""

import os
from tempfile import TemporaryDirectory

import nbval.kernel
from jupyter_client.manager import KernelManager


class PrivateKernelManager(KernelManager):
    """A kernel manager whose sockets and settings lie in a temporary folder."""

    def __init__(self, **options) -> None:
        self.folder = TemporaryDirectory(prefix="kernel-")
        super().__init__(transport="ipc", ip=os.path.join(self.folder.name, "socket"), **options)

    def start_kernel(self, **options) -> None:
        """Start it; what it writes to stderr shows with the cell that fails."""
        options.pop("stderr", None)
        env = {**os.environ, **options.pop("env", {}), "IPYTHONDIR": self.folder.name}
        super().start_kernel(env=env, **options)

    def cleanup_resources(self, restart: bool = False) -> None:
        """Remove the folder once the kernel is gone for good."""
        super().cleanup_resources(restart)
        if not restart:
            self.folder.cleanup()


def pytest_configure() -> None:
    nbval.kernel.KernelManager = PrivateKernelManager
