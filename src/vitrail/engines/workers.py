"""Worker processes of the simulation: one torch thread each, sharing the memory of the images."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.multiprocessing as mp

from vitrail.data.dataset import Images
from vitrail.engines.replies import Failure
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.engines.simulation import SimulatedClients

Shared = dict[str, Any]  # fields of `Images` that another process can open without a copy


class Worker:
    """A process that answers for one client at a time."""

    def __init__(self, clients: SimulatedClients, shared: Shared) -> None:
        context = process_context()
        near, far = context.Pipe()
        self.pipe: Connection = near
        self.process = context.Process(target=_work, args=(far, dict(os.environ), clients, shared), daemon=True)
        with _hidden_main():
            self.process.start()
        far.close()
        self.job: tuple[str, bytes] = ("", b"")

    def send(self, client: str, request: bytes) -> None:
        """Send a request to the process."""
        self.job = (client, request)
        with contextlib.suppress(OSError):  # `receive` reports a dead process
            self.pipe.send_bytes(client.encode())
            self.pipe.send_bytes(request)

    def receive(self) -> bytes | Failure:
        """Return the reply, or a failure if the process has died."""
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError):
            self.process.join()
            return Failure(f"its worker process ended with code {self.process.exitcode} (out of memory?)")

    def stop(self) -> None:
        """Stop the process."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def check_importable(clients: SimulatedClients) -> None:
    """Refuse clients that worker processes cannot load, before any of them is started.

    Raises:
        VitrailError: The method, or something it refers to, cannot be pickled or is defined in the caller's script.
    """
    try:
        raw = pickle.dumps(clients)
    except Exception as e:
        raise VitrailError(f"worker processes cannot load the method ({type(e).__name__}: {e}); use workers=1") from e
    if b"__main__" in raw:
        raise VitrailError(
            f"{type(clients.method).__name__}: worker processes cannot import classes of a script or notebook "
            "(__main__); move them to a module, or use workers=1"
        )


def process_context() -> Any:
    """Return the start method of worker processes: forkserver, which imports torch once for all, or spawn."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["vitrail.engines.simulation", "torch._dynamo"])  # all optimizers import the second
    return context


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide the caller's script: a new process would run it again, and train again if it has no main guard."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {k: vars(main).pop(k) for k in ("__file__", "__spec__") if k in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def _work(pipe: Connection, environment: dict[str, str], clients: SimulatedClients, shared: Shared) -> None:
    """Answer requests until the pipe is closed."""
    os.environ.update(environment)  # the fork server has the environment of its own start
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    train = Images(**{name: _open(value) for name, value in shared.items()})
    with one_thread(), contextlib.suppress(EOFError, OSError):
        while True:
            client = pipe.recv_bytes().decode()
            pipe.send_bytes(clients.client(client, train).answer(pipe.recv_bytes()))


def share_images(images: Images) -> Shared:
    """Make images available to other processes without a copy; the kernel frees the memory with the last of them."""
    return {f.name: _share(getattr(images, f.name)) for f in fields(images)}


def _share(a: Any) -> Any:
    if isinstance(a, np.memmap) and a.filename is not None:
        return str(a.filename), str(a.dtype), a.shape, a.offset
    return None if a is None else torch.from_numpy(np.ascontiguousarray(a)).share_memory_()


def _open(a: Any) -> Any:
    if isinstance(a, tuple):
        name, dtype, shape, offset = a
        return np.memmap(name, dtype, "r", offset, shape)
    return None if a is None else a.numpy()
