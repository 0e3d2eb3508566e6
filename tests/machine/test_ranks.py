"""Which worker a process is, from the variables of its launcher."""

import json

import pytest

from lms.errors import WorkersError
from lms.machine.ranks import Placement, read_placement

SLURM = {
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "node[08-09],big",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}


def _config(workers: list[str] | str, index: int = 0, kind: str = "worker") -> str:
    task = {"type": kind, "index": index}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def test_a_process_that_nobody_placed_is_alone() -> None:
    assert read_placement({}) == Placement()
    assert read_placement({"TF_CONFIG": "{}"}).size == 1
    assert read_placement({"TF_CONFIG": _config(["a:1"])}).size == 1
    assert read_placement({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}).size == 1


def test_tensorflows_variable_comes_first() -> None:
    found = read_placement({**SLURM, "TF_CONFIG": _config(["a:1", "b:1", "b:2"], 2)})
    assert (found.rank, found.size, found.local_rank, found.local_size) == (2, 3, 1, 2)
    assert found.addresses == ("a:1", "b:1", "b:2")


def test_slurms_tasks_have_an_address_on_their_node() -> None:
    found = read_placement(SLURM)
    hosts = [address.partition(":")[0] for address in found.addresses]
    assert hosts == ["node08", "node08", "node09", "node09", "big"]
    assert (found.rank, found.local_rank, found.local_size) == (3, 1, 2)
    assert len(set(found.addresses)) == 5
    assert read_placement({**SLURM, "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}) == (
        Placement(rank=2, addresses=found.addresses)
    )
    other = read_placement({**SLURM, "SLURM_JOB_ID": "43"})
    assert not set(other.addresses) & set(found.addresses)


@pytest.mark.parametrize(
    "names",
    [
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMI_RANK PMI_SIZE MPI_LOCALNRANKS",
    ],
)
def test_an_mpi_launcher_places_workers_on_one_host(names: str) -> None:
    rank, size, here = names.split()
    variables = {rank: "1", size: "2", here: "2"}
    found = read_placement(variables)
    assert (found.rank, found.size, found.local_size) == (1, 2, 2)
    assert read_placement({**SLURM, **variables}) == found  # Slurm's are a daemon's
    with pytest.raises(WorkersError, match="does not name other hosts"):
        read_placement({**variables, here: "1"})
    for wrong in ("2", "-1", "x"):
        with pytest.raises(WorkersError, match=f"`{rank}` must .* 2, .* got '{wrong}'"):
            read_placement({**variables, rank: wrong})


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"TF_CONFIG": "{"}, "must hold JSON"),
        ({"TF_CONFIG": "[1]"}, "must hold JSON"),
        ({"TF_CONFIG": _config(["a:1", "b:1"], 2)}, "a task below 2"),
        ({"TF_CONFIG": _config(["a:1", "a:1"])}, "one address for each worker"),
        ({"TF_CONFIG": _config(["a:1", "b:1"], kind="ps")}, "got 'ps'"),
        ({"TF_CONFIG": _config("a:1")}, r"a list of addresses .*, got {'worker': 'a"),
        ({**SLURM, "SLURM_PROCID": "5"}, "`SLURM_PROCID` must .* below 5, .* got '5'"),
        ({**SLURM, "SLURM_STEP_NODELIST": "one"}, "must agree, got 5 tasks on 1 nodes"),
        ({**SLURM, "SLURM_LOCALID": "0"}, "--distribution=block"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "`OMPI_COMM_WORLD_RANK` must be set"),
    ],
)
def test_what_makes_no_sense_is_refused(variables: dict[str, str], said: str) -> None:
    with pytest.raises(WorkersError, match=said):
        read_placement(variables)
