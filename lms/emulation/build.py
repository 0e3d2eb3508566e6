"""Compile the emulated card for the installed TensorFlow, once.

    <cache>/emulation/<digest of sources, TensorFlow and compiler>/
        libcuda.so.1, libcudart.so.12, ...     the driver, and names of CUDA's libraries
        computing.so, dry.so                   the two fronts

A build has a folder of its own, renamed when complete. Other builds wait meanwhile,
where files can be locked; the next build removes the remains of a killed one.

Known weakness: the fronts use private C++ of TensorFlow (priorities of kernels, its
registry), so versions that were not tried are refused. Nightly builds may fail.
"""

import fcntl
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from lms.emulation import missing
from lms.errors import UnsupportedError
from lms.storage.cache import VARIABLE, cache_folder, digest

__all__ = ["COMPUTING", "DRIVER", "DRY", "built"]

_FRONTS = COMPUTING, DRY = "computing.so", "dry.so"
DRIVER: Final = "libcuda.so.1"

_NATIVE: Final = Path(__file__).parent / "native"
_VERSIONS: Final = "2.21.", "2.22."

# Libraries that TensorFlow loads by name; the driver holds their functions.
_LIBRARIES: Final = (
    "libcudart.so.12",
    "libnvidia-ml.so.1",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
    "libnccl.so.2",
)
_FLAGS: Final = (
    *("-O2", "-g0", "-std=c++17", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-DNDEBUG", "-DEIGEN_MAX_ALIGN_BYTES=64", "-w"),
)
_TENSORFLOW: Final = ("-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tools:
    """TensorFlow's folder and version, and the compiler."""

    tensorflow: Path
    version: str
    compiler: str


def built() -> Path:
    """Return the folder of the compiled card; compile the card first if needed.

    Raises:
        UnsupportedError: If the card cannot be compiled here; names what is missing.
    """
    tools = _tools()
    folder = _kept_in() / _digest(tools)
    if _is_whole(folder):
        return folder
    with _alone(folder.parent):
        if not _is_whole(folder):  # another process may have been first
            shutil.rmtree(folder, ignore_errors=True)  # a partly deleted build
            _build(tools, folder)
    return folder


def _is_whole(folder: Path) -> bool:
    return all((folder / name).exists() for name in (DRIVER, *_LIBRARIES, *_FRONTS))


def _tools() -> _Tools:
    """Find the tools of a build.

    Raises:
        UnsupportedError: If a tool is missing; names the tool.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise _cannot(f"Linux on x86-64, got {sys.platform} on {platform.machine()}")
    found = importlib.util.find_spec("tensorflow")
    if found is None or not found.submodule_search_locations:
        raise _cannot("TensorFlow, got none. Install `tensorflow`")
    tensorflow = Path(found.submodule_search_locations[0])
    info = (tensorflow / "python" / "platform" / "build_info.py").read_text()
    if not re.search(r"is_cuda_build'?\"?[,:] *True", info):
        raise _cannot(
            "TensorFlow's build for GPUs, got one without, as `tensorflow-cpu` is. "
            "Install `tensorflow`"
        )
    version = _version()
    if not version.startswith(_VERSIONS) and ".dev" not in version:
        known = " or ".join(f"{each}x" for each in _VERSIONS)
        raise _cannot(f"TensorFlow {known}, got {version}")
    name = os.environ.get("CXX", "g++")
    compiler = shutil.which(name)
    if compiler is None or shutil.which("nm") is None:
        raise _cannot(f"a C++ compiler, got no {name!r}. Install `g++`, or set CXX")
    return _Tools(tensorflow=tensorflow, version=version, compiler=compiler)


def _cannot(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"an emulated card needs {what}. Training on a real card does not."
    )


def _version() -> str:
    """Read TensorFlow's version without an import, which would take seconds."""
    for name in ("tensorflow", "tf-nightly"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "an unknown one"


def _kept_in() -> Path:
    """Return the folder of all builds; without a cache, a temporary one."""
    folder = cache_folder()
    if folder is not None:
        return folder / "emulation"
    folder = Path(tempfile.gettempdir()) / f"lms-emulation-{os.getuid()}"
    with suppress(OSError):  # `_alone` raises the error
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise UnsupportedError(
                f"{str(folder)!r} must be a folder that you alone can write, as code "
                f"is loaded from it, got one of user {found.st_uid} with mode "
                f"{found.st_mode & 0o777:o}. Remove it, or set {VARIABLE} to another."
            )
    return folder


def _digest(tools: _Tools) -> str:
    """Digest all inputs of a build."""
    files = (*_NATIVE.iterdir(), Path(__file__), Path(missing.__file__))
    sources = sorted((path.name, path.read_text()) for path in files)
    libraries = sorted(tools.tensorflow.glob("libtensorflow_*.so.2"))
    built_with = [(path.name, path.stat().st_size) for path in libraries]
    return digest(sources, built_with, tools.version, tools.compiler)[:16]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder for one build, where locks work; print if another build runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise UnsupportedError(
            "the emulated card must be compiled into a folder that can be written, got "
            f"{str(folder)!r} ({error.strerror}). Set {VARIABLE} to another folder."
        ) from error
    with lock:
        is_alone = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("Waiting for another process that compiles the emulated card.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # NFS or Lustre without locks: each compiles for itself
            is_alone = False
        for path in folder.glob("unfinished-*") if is_alone else ():
            shutil.rmtree(path, ignore_errors=True)
        yield


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _build(tools: _Tools, folder: Path) -> None:
    """Compile into a temporary folder, then rename the folder.

    Raises:
        UnsupportedError: If the compiler fails; quotes the compiler.
    """
    _say(
        f"Compiling the emulated card for TensorFlow {tools.version}: one to four "
        "minutes, once."
    )
    start = time.monotonic()
    at = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    try:
        stubs = missing.names_in(tools.tensorflow / "libtensorflow_framework.so.2")
        (at / "missing.cc").write_text(missing.missing_functions(stubs))
        _compile([_driver(tools, at)])
        _compile([_library(tools, at, name) for name in _LIBRARIES])
        _compile([_front(tools, at, name) for name in _FRONTS])
        at.rename(folder)
    except OSError:
        if not _is_whole(folder):  # without locks another build may have been first
            raise
    finally:
        shutil.rmtree(at, ignore_errors=True)
    _say(f"Compiled in {time.monotonic() - start:.0f} s, kept in {folder}.")


def _compile(commands: Sequence[Sequence[str]]) -> None:
    """Run compilers in parallel, and wait for all."""
    running = [
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    said = [process.communicate()[1] for process in running]
    for process, text in zip(running, said, strict=True):
        if process.returncode != 0:
            raise UnsupportedError(
                "could not compile the emulated card: "
                f"{text.strip()[:2000]}. Try another compiler: CXX=g++-12."
            )


def _driver(tools: _Tools, at: Path) -> list[str]:
    gpus = tools.tensorflow / "include" / "third_party" / "gpus"
    parts = ("cuda/include", "cudnn/include", "cuda/libcudacxx/include")
    include = (tools.tensorflow / "include", *(gpus / part for part in parts), _NATIVE)
    return [
        *(tools.compiler, *_FLAGS, *(f"-I{path}" for path in include)),
        *("-shared", f"-Wl,-soname,{DRIVER}", "-o", str(at / DRIVER)),
        *(str(_NATIVE / name) for name in ("driver.cc", "libraries.cc", "nccl.cc")),
        str(at / "missing.cc"),
    ]


def _library(tools: _Tools, at: Path, name: str) -> list[str]:
    """Return the command for an empty library that loads the driver."""
    return [
        *(tools.compiler, "-shared", f"-Wl,-soname,{name}", "-o", str(at / name)),
        *("-x", "c++", os.devnull, "-x", "none", "-Wl,--no-as-needed"),
        *(f"-L{at}", f"-l:{DRIVER}"),
    ]


def _front(tools: _Tools, at: Path, name: str) -> list[str]:
    source = _NATIVE / Path(name).with_suffix(".cc")
    return [
        *(tools.compiler, *_FLAGS, f"-I{tools.tensorflow / 'include'}"),
        *("-shared", "-o", str(at / name), str(source), f"-L{at}", f"-l:{DRIVER}"),
        *(f"-L{tools.tensorflow}", *_TENSORFLOW),
    ]
