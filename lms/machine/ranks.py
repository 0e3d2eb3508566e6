"""The rank of this process in a job of several workers, and their addresses.

    TF_CONFIG ──> else an MPI launcher's variables ──> else Slurm's ──> else alone

`python -m lms launch`, Ray Train, Kubeflow and Vertex AI set TF_CONFIG; `srun` and
`mpirun` set variables of their own. Slurm's list names the nodes, so addresses follow
from it. MPI launchers name no hosts: their workers must all be on one host. In a Slurm
job, workers of an MPI launcher inherit Slurm's variables.

Sources: TF_CONFIG as `tf.distribute.cluster_resolver.TFConfigClusterResolver` reads it;
srun(1), "OUTPUT ENVIRONMENT VARIABLES"; Open MPI's and MPICH's (Hydra) documentation.
"""

import itertools
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lms.errors import WorkersError

__all__ = ["Placement", "cluster_variables", "joined", "note_joined", "read_placement"]

_CONFIG: Final = "TF_CONFIG"

# Range of ports for workers without given addresses, below Linux's ephemeral ports. A
# job's first port is a multiple of 64 above its start, chosen by the job's id.
_PORTS: Final = 20_000, 32_000
_PORTS_EACH: Final = 64

# Variables of rank, workers, and workers on this host: Open MPI's, Hydra's.
_MPI: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One worker of a job.

    Args:
        rank: Its number, from 0; 0 is the chief.
        addresses: `host:port` of all workers by rank; empty for a single worker.
    """

    rank: int = 0
    addresses: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of workers."""
        return max(1, len(self.addresses))

    @property
    def local_rank(self) -> int:
        """The worker's number among the workers of its host."""
        return self._neighbours.index(self.rank)

    @property
    def local_size(self) -> int:
        """Number of workers on the worker's host.

        Example:
            >>> two = Placement(rank=1, addresses=("a:1", "a:2", "b:1"))
            >>> two.size, two.local_rank, two.local_size
            (3, 1, 2)
        """
        return len(self._neighbours)

    @property
    def _neighbours(self) -> list[int]:
        hosts = [address.rpartition(":")[0] for address in self.addresses] or [""]
        return [i for i, host in enumerate(hosts) if host == hosts[self.rank]]


_joined: list[Placement] = []


def note_joined(placement: Placement) -> None:
    """Record that this program has joined its job as a worker."""
    _joined.append(placement)


def joined() -> Placement:
    """Return this program's place in the job that it has joined; alone by default."""
    return _joined[0] if _joined else Placement()


def cluster_variables(placement: Placement) -> dict[str, str]:
    """Return the environment variables that describe a placement to TensorFlow.

    Example:
        >>> two = Placement(rank=1, addresses=("127.0.0.1:4001", "127.0.0.1:4002"))
        >>> again = read_placement(cluster_variables(two))
        >>> again.rank, again.addresses == two.addresses
        (1, True)
    """
    task = {"type": "worker", "index": placement.rank}
    cluster = {"worker": list(placement.addresses)}
    return {_CONFIG: json.dumps({"cluster": cluster, "task": task})}


def read_placement(environ: Mapping[str, str] = os.environ) -> Placement:
    """Read this process's placement from environment variables.

    Raises:
        WorkersError: If the variables contradict each other, or do not say enough.
    """
    if environ.get(_CONFIG, "").strip():
        return _of_tensorflow(environ[_CONFIG])
    mpi = next((names for names in _MPI if _count(environ, names[1]) > 1), None)
    is_slurm = _count(environ, "SLURM_STEP_NUM_TASKS") > 1
    if mpi and (mpi[2] in environ or not is_slurm):  # `srun` may set the first two
        return _of_mpi(environ, mpi)
    return _of_slurm(environ) if is_slurm else Placement()


def _of_tensorflow(text: str) -> Placement:
    try:
        found = json.loads(text)
        cluster: dict[str, Any] = dict(found.get("cluster") or {})
        task: dict[str, Any] = dict(found.get("task") or {})
        kind, index = str(task.get("type", "worker")), int(task.get("index", 0))
        workers = tuple(map(str, cluster.get("worker", ())))
    except (AttributeError, TypeError, ValueError) as error:
        raise _unreadable(f"JSON as TensorFlow's guide shows it ({error})") from error
    if not all(isinstance(names, list) for names in cluster.values()):
        raise _unreadable(f"a list of addresses for each job, got {cluster}")
    if cluster.get("chief"):
        raise _unreadable("workers alone, got a chief: make it the first worker")
    if not workers:
        return Placement()
    if kind != "worker":
        raise _unreadable(f"a task of type worker, got {kind!r}")
    if not 0 <= index < len(workers):
        raise _unreadable(f"a task below {len(workers)}, its workers, got {index}")
    if len(set(workers)) < len(workers):
        raise _unreadable(f"one address for each worker, got {', '.join(workers)}")
    return Placement(rank=index, addresses=workers if len(workers) > 1 else ())


def _unreadable(rule: str) -> WorkersError:
    return WorkersError(
        f"`{_CONFIG}` must hold {rule}. `python -m lms launch` sets it for one host; "
        "unset it to train alone."
    )


def _of_slurm(environ: Mapping[str, str]) -> Placement:
    nodes = list(_nodes(_needed(environ, "SLURM_STEP_NODELIST")))
    each = list(_tasks(_needed(environ, "SLURM_STEP_TASKS_PER_NODE")))
    size = _count(environ, "SLURM_STEP_NUM_TASKS")
    if len(nodes) != len(each) or sum(each) != size:
        raise WorkersError(
            f"Slurm's variables must agree, got {size} tasks on {len(nodes)} nodes "
            f"but {each} tasks by node. Start the program with `srun`."
        )
    number = f"{_needed(environ, 'SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID', 0)}"
    rank = _rank(environ, "SLURM_PROCID", size)
    addresses = _addresses(zip(nodes, each, strict=True), number)
    found = Placement(rank=rank, addresses=addresses)
    if found.local_rank != _count(environ, "SLURM_LOCALID", found.local_rank):
        raise WorkersError(
            f"Slurm must give each node consecutive tasks, got task {rank} "
            f"as number {environ['SLURM_LOCALID']} of its node. Start the "
            "program with `srun --distribution=block`."
        )
    return found


def _of_mpi(environ: Mapping[str, str], names: tuple[str, str, str]) -> Placement:
    size = _count(environ, names[1])
    rank = _rank(environ, names[0], size)
    if _count(environ, names[2], 0) != size:
        raise WorkersError(
            f"Could not find all {size} workers: an MPI launcher does not name other "
            f"hosts. Start all workers on one host, set `{_CONFIG}`, or use Slurm, Ray "
            "or Kubernetes."
        )
    number = environ.get("PMIX_NAMESPACE", environ.get("PMI_JOBID", str(os.getppid())))
    return Placement(rank=rank, addresses=_addresses([("127.0.0.1", size)], number))


def _addresses(hosts: Any, job: str) -> tuple[str, ...]:
    """Return addresses with ports that all workers of a job compute alike."""
    first, last = _PORTS
    places = (last - first) // _PORTS_EACH
    base = first + zlib.crc32(job.encode()) % places * _PORTS_EACH
    return tuple(f"{host}:{base + i}" for host, count in hosts for i in range(count))


def _nodes(text: str) -> Iterator[str]:
    """Yield the names of a Slurm node list.

    Example:
        >>> list(_nodes("gpu[01-02,7]-ib,login,r[1-2]n[3-4]"))
        ['gpu01-ib', 'gpu02-ib', 'gpu7-ib', 'login', 'r1n3', 'r1n4', 'r2n3', 'r2n4']
    """
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text):
        prefix, *rest = re.split(r"\[(.*?)\]", part)
        numbers = [list(_numbers(inner)) for inner in rest[::2]]
        for chosen in itertools.product(*numbers):
            yield prefix + "".join(map("".join, zip(chosen, rest[1::2], strict=True)))


def _numbers(text: str) -> Iterator[str]:
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"


def _tasks(text: str) -> Iterator[int]:
    """Yield the number of tasks of each node.

    Example:
        >>> list(_tasks("2(x3),1"))
        [2, 2, 2, 1]
    """
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from [int(count)] * int(times or 1)


def _count(environ: Mapping[str, str], name: str, without: int = 1) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else without


def _rank(environ: Mapping[str, str], name: str, size: int) -> int:
    text = _needed(environ, name)
    if _count(environ, name, size) >= size:
        raise WorkersError(
            f"`{name}` must be a whole number below {size}, the number of workers, got "
            f"{text!r}. Start the program with the launcher itself, or set `{_CONFIG}`."
        )
    return int(text)


def _needed(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise WorkersError(
            f"`{name}` must be set, as other variables of its launcher are. Start the "
            f"program with the launcher itself, or set `{_CONFIG}`."
        )
    return environ[name]
