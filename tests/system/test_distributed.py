"""Several processes, one run: real torchrun with two gloo ranks, compared with one process that does all the work.

torchrun starts ranks.py for tests that must look inside, and the command itself for the others.
"""

import json
import math
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman import bundle, tensors
from dragoman.config import Config
from dragoman.errors import ConfigError
from dragoman.training import checkpoint, distributed
from dragoman.training.checkpoint_files import checkpoint_path, checkpoint_step, checkpoints, read_checkpoint
from dragoman.training.distributed import Ranks
from dragoman.training.loop import train
from dragoman.training.reports.log import read_log

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO = ["--standalone", "--nproc-per-node", "2"]
PATIENCE = 900.0  # seconds
PAIRS = 230  # so that an epoch ends within a step
TRANSFORMER = [
    "model.d_ff=64",
    "model.attention_bias=false",  # a key's bias has no gradient but rounding, which Adam takes for a direction
]
SMALL = [
    "text.model=word",
    "text.vocab_size=300",
    "model.num_layers=1",
    "model.d_model=32",
    "model.dropout=0.0",
    "train.max_steps=12",
    "train.save_every=12",
    "train.batch_tokens=64",
    "train.valid_sentences=2",
    "train.log_every=1",
    "train.warmup_steps=10",
    "train.average=1",
    "train.trackers=[]",
]
FSDP = "train.parallel=fsdp"
DROPOUT = ["model.dropout=0.2", "train.save_every=4", "train.keep_checkpoints=9"]


def settings(*more: str) -> list[str]:
    return [*SMALL, *([] if "model.architecture=rnn" in more else TRANSFORMER), *more]


def write_uneven(directory: Path, count: int = PAIRS) -> dict[str, list[str]]:
    """Pairs whose target is ten words or one: batches of similar length differ tenfold in target tokens."""
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    paths = {}
    for side in ("source", "target"):
        lengths = [11 if row % 2 else (10 if side == "source" else 1) for row in range(count)]
        lines = [" ".join(words[(row * (place + 1)) % 8] for place in range(size)) for row, size in enumerate(lengths)]
        path = directory / f"train.{side}"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths[side] = [str(path)]
        few = directory / f"valid.{side}"
        few.write_text("\n".join(lines[:20]) + "\n", encoding="utf-8")
        paths[f"valid_{side}"] = [str(few)]
    return paths


@dataclass(frozen=True)
class Job:
    """A run of ranks.py."""

    name: str
    settings: Sequence[str] = ()
    changes: Sequence[str] = ()


class Place:
    """A directory with a corpus and the runs that were trained on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = write_uneven(directory)
        self.jobs: list[Job] = []

    def __getitem__(self, name: str) -> Path:
        return self.directory / name

    def alone(self, name: str, *more: str) -> Path:
        """Train in this process."""
        train(Config.build("tiny", None, settings(*more), data=self.data), self[name])
        return self[name]

    def two_ranks(self, *jobs: Job, options: Sequence[str] = TWO) -> subprocess.CompletedProcess[str]:
        self.list_jobs(*jobs)
        return torchrun([*options, *self.script])

    @property
    def script(self) -> list[str]:
        """What torchrun starts."""
        return [str(ROOT / "tests/system/ranks.py"), str(self.directory / "jobs.json")]

    def list_jobs(self, *jobs: Job) -> None:
        self.jobs = list(jobs)
        listed = [
            {
                "run": str(self[job.name]),
                "settings": settings(*job.settings),
                "data": self.data,
                "changes": list(job.changes),
            }
            for job in jobs
        ]
        (self.directory / "jobs.json").write_text(json.dumps(listed))

    def noted(self, name: str, rank: int) -> dict[str, Any]:
        number = next(number for number, job in enumerate(self.jobs) if job.name == name)
        noted: dict[str, Any] = json.loads((self.directory / f"{number}-{rank}.json").read_bytes())
        return noted

    def command(self, run: str, *more: str) -> list[str]:
        """The command line of a run."""
        files = [item for side, names in self.data.items() for item in (f"--{side.replace('_', '-')}", names[0])]
        chosen = [item for setting in settings(*more) for item in ("--set", setting)]
        return ["-m", "dragoman", "train", "--preset", "tiny", "--out", str(self[run]), *files, *chosen]


def torchrun(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TORCHRUN, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)


def passed(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr[:5_000]


def log_of(run: Path, kind: str = "step") -> list[dict[str, Any]]:
    return [record for record in read_log(run) if record["kind"] == kind]


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in log_of(run)]


def state(run: Path, step: int) -> dict[str, bytes]:
    """A checkpoint without its clock and its provenance."""
    files = read_checkpoint(checkpoint_path(run, step))
    del files["provenance.json"]
    recorded = json.loads(files["state.json"])
    del recorded["progress"]["seconds"]
    return {**files, "state.json": json.dumps(recorded).encode()}


def saved_tensors(run: Path, step: int, name: str = bundle.WEIGHTS) -> dict[str, torch.Tensor]:
    path = checkpoint_path(run, step)
    return tensors.weights_from_bytes(read_checkpoint(path)[name], path)


def assert_same_run(one: Path, two: Path, step: int = 12) -> None:
    """The same losses, gradients, weights and moments, up to the order of summation."""
    assert len(log_of(one)) == len(log_of(two)) == step
    for name in ("loss", "gradient_norm"):
        ours, theirs = ([record[name] for record in log_of(run)] for run in (one, two))
        assert ours == pytest.approx(theirs, rel=1e-5), name
    for name in (bundle.WEIGHTS, checkpoint.OPTIMIZER):
        saved, expected = saved_tensors(one, step, name), saved_tensors(two, step, name)
        for key in expected:
            if not key.startswith("random."):
                torch.testing.assert_close(saved[key], expected[key], rtol=1e-3, atol=2e-5)
    for kind in ("valid", "average"):
        ours, theirs = (
            [record["loss"] for record in log_of(run, kind) if record["step"] == step] for run in (one, two)
        )
        assert ours == pytest.approx(theirs, rel=1e-5), kind


# Two ranks and one process, the same numbers


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """All runs of the quick tests, in the same two processes."""
    place = Place(tmp_path_factory.mktemp("short"))
    place.alone("one then two", "train.accumulate=4", "train.max_steps=6")
    done = place.two_ranks(
        Job("ddp", ["train.accumulate=2"], ["record rows"]),
        Job("fsdp", ["train.accumulate=2", FSDP], ["record rows"]),
        Job("packed", ["train.accumulate=2", "train.layout=packed"]),
        Job("by rank", ["train.accumulate=2"], ["normalise by rank"]),
        Job("two then one", ["train.accumulate=2", "train.max_steps=6"]),
        Job("sharded then one", ["train.accumulate=2", "train.max_steps=6", FSDP]),
        Job("one then two", ["train.accumulate=2", FSDP]),
        Job("whole", [*DROPOUT, "train.max_steps=8"]),
        Job("parts", [*DROPOUT, "train.max_steps=4"]),
        Job("parts", [*DROPOUT, "train.max_steps=8"], ["old picture"]),
        Job("forgetful", [*DROPOUT, "train.max_steps=4"]),
        Job("forgetful", [*DROPOUT, "train.max_steps=8"], ["lose random state"]),
    )
    passed(done)
    assert done.stdout == ""
    return place


@pytest.fixture(scope="module")
def alone(short: Place) -> Path:
    """The same in one process."""
    return short.alone("alone", "train.accumulate=4")


@pytest.mark.parametrize("run", ["ddp", "fsdp"])
@pytest.mark.slow
def test_two_ranks_match_one_process_with_twice_the_batches(short: Place, alone: Path, run: str) -> None:
    assert_same_run(short[run], alone)


@pytest.mark.slow
def test_two_ranks_match_one_process_with_packed_batches(short: Place, alone: Path) -> None:
    packed = short.alone("alone, packed", "train.accumulate=4", "train.layout=packed")
    assert_same_run(short["packed"], packed)
    assert losses(packed)[1] != pytest.approx(losses(alone)[1], rel=1e-3), "the batches differ from padded ones"


@pytest.mark.slow
def test_normalising_by_tokens_per_rank_changes_the_losses(short: Place) -> None:
    apart = [
        abs(ours / theirs - 1) for ours, theirs in zip(losses(short["ddp"]), losses(short["by rank"]), strict=True)
    ]
    assert max(apart) > 1e-2


@pytest.mark.parametrize("run", ["ddp", "fsdp"])
@pytest.mark.slow
def test_ranks_read_disjoint_rows_that_cover_each_epoch(short: Place, run: str) -> None:
    by_rank = [short.noted(run, rank)["rows"] for rank in (0, 1)]
    assert [len(steps) for steps in by_rank] == [12, 12]
    in_order = [batch for steps in zip(*by_rank, strict=True) for turn in zip(*steps, strict=True) for batch in turn]
    rows = [row for batch in in_order for row in batch]
    assert len(rows) > PAIRS
    assert sorted(rows[:PAIRS]) == list(range(PAIRS)), "the first epoch"
    assert len(set(rows[PAIRS:])) == len(rows[PAIRS:]), "a part of the second"


@pytest.mark.parametrize("run", ["ddp", "fsdp"])
@pytest.mark.slow
def test_only_rank_0_writes(short: Place, run: str) -> None:
    assert short.noted(run, 1)["written"] == []
    names = {Path(path).name for path in short.noted(run, 0)["written"]}
    assert {".weights.safetensors.partial", "log.jsonl", ".step-000012.partial"} <= names


@pytest.mark.slow
def test_two_ranks_resume_bit_for_bit_with_their_rng_states(short: Place) -> None:
    assert state(short["whole"], 8) == state(short["parts"], 8)
    assert losses(short["whole"]) == losses(short["parts"])
    assert state(short["whole"], 4) == state(short["forgetful"], 4)
    assert state(short["whole"], 8) != state(short["forgetful"], 8), "the control: the RNG state matters"
    saved = {name for name in saved_tensors(short["whole"], 8, checkpoint.OPTIMIZER) if name.startswith("random.")}
    assert saved == {"random.cpu.0", "random.cpu.1"}


@pytest.mark.parametrize("run", ["two then one", "sharded then one", "one then two"])
@pytest.mark.slow
def test_checkpoint_resumes_with_any_number_of_processes(short: Place, alone: Path, run: str) -> None:
    if run.endswith("one"):
        short.alone(run, "train.accumulate=4")
    assert_same_run(short[run], alone)


@pytest.mark.slow
def test_error_in_rank_0_stops_all_ranks_and_is_reported_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    Path(place.data["target"][0]).unlink()
    done, said = redirected(tmp_path, place.command("run"))
    assert done.returncode != 0
    assert said == {"0": f"dragoman: {place.data['target'][0]}: no such file; check its name\n", "1": ""}


def redirected(tmp_path: Path, command: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """The output of every rank of the last attempt, by rank."""
    logs = tmp_path / "logs"
    done = torchrun([*TWO, "--log-dir", str(logs), "--redirects", "3", *command])
    said: dict[str, str] = {}
    for name in ("stdout.log", "stderr.log"):
        for path in sorted(logs.rglob(name)):
            said[path.parent.name] = said.get(path.parent.name, "") + path.read_text(encoding="utf-8")
    return done, said


# Long forms


VARIANTS = {
    "moving average": ["train.ema=0.9"],
    "frozen": ['train.freeze=["encoder", "decoder.layers.0.feed_forward"]'],
    "frozen embedding": ["train.freeze=source_embedding"],
    "averaged": ["train.save_every=4", "train.average=3"],
    "three matrices": ["text.joint=false", "model.share_source_target=false", "model.share_target_output=false"],
    "pre-norm": ["model.norm=pre", "model.positions=learned", "model.max_positions=256", "model.num_layers=2"],
    "rnn": ["model.architecture=rnn"],
    "rnn without attention": ["model.architecture=rnn", "model.context=none", "model.cell=rnn"],
    "rnn that looks at itself": ["model.architecture=rnn", "model.context=self"],
    "no clipping": ["train.clip_norm=0"],
    "groups": ["train.batch_tokens=1200"],  # two in a batch, one in an epoch's last: ranks have not the same number
}
SAMPLED = [
    "text.model=bpe",
    "text.vocab_size=60",
    "text.byte_fallback=false",
    "text.sampling=0.3",
    "text.max_length=120",
    "train.batch_tokens=256",
]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("long"))
    passed(
        place.two_ranks(
            *(
                Job(f"{name}, {parallel}", ["train.accumulate=2", f"train.parallel={parallel}", *VARIANTS[name]])
                for name in VARIANTS
                for parallel in ("ddp", "fsdp")
            ),
            Job("sampled", ["train.accumulate=2", *SAMPLED], ["slow to open", "record rows"]),
            Job("sampled, packed", ["train.accumulate=2", "train.layout=packed", *SAMPLED]),
            Job("many epochs a step", ["train.accumulate=2", *SAMPLED, "train.batch_tokens=8192"], ["slow to open"]),
            Job("whole", [*DROPOUT, FSDP, "train.ema=0.9"]),
            Job("parts", [*DROPOUT, FSDP, "train.ema=0.9", "train.max_steps=4"]),
            Job("parts", [*DROPOUT, FSDP, "train.ema=0.9", "train.max_steps=8"]),
            Job("parts", [*DROPOUT, FSDP, "train.ema=0.9"]),
            Job("ddp then fsdp", ["train.accumulate=2", "train.max_steps=4", "train.save_every=4"]),
            Job("ddp then fsdp", ["train.accumulate=2", "train.max_steps=8", "train.save_every=4", FSDP]),
            Job("ddp then fsdp", ["train.accumulate=2", "train.max_steps=12", "train.save_every=4"]),
        )
    )
    return place


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains_the_same_on_two_ranks(long: Place, name: str) -> None:
    alone = long.alone(f"{name}, alone", "train.accumulate=4", *VARIANTS[name])
    for parallel in ("ddp", "fsdp"):
        assert_same_run(long[f"{name}, {parallel}"], alone)
    if name == "moving average":
        for parallel in ("ddp", "fsdp"):
            ours, theirs = (saved_tensors(run, 12, checkpoint.AVERAGE) for run in (long[f"{name}, {parallel}"], alone))
            for key in theirs:
                torch.testing.assert_close(ours[key], theirs[key], rtol=1e-3, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sampled", "sampled, packed", "many epochs a step"])
def test_subword_sampling_is_the_same_in_two_ranks(long: Place, name: str) -> None:
    more = {"sampled": [], "sampled, packed": ["train.layout=packed"]}.get(name, ["train.batch_tokens=8192"])
    assert_same_run(long[name], long.alone(f"{name}, alone", "train.accumulate=4", *SAMPLED, *more))
    assert log_of(long[name])[-1]["epoch"] >= (20 if name.startswith("many") else 1)


@pytest.mark.slow
def test_only_rank_0_writes_the_segmentations_of_an_epoch(long: Place) -> None:
    assert long.noted("sampled", 1)["written"] == []
    assert any(".sampled-" in path for path in long.noted("sampled", 0)["written"])


@pytest.mark.slow
def test_sharded_ranks_resume_bit_for_bit(long: Place) -> None:
    assert state(long["whole"], 12) == state(long["parts"], 12)


@pytest.mark.slow
def test_ddp_run_can_resume_with_fsdp(long: Place) -> None:
    assert_same_run(long["ddp then fsdp"], long.alone("one", "train.accumulate=4", "train.save_every=4"))


# When a process ends


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_process_is_replaced_and_the_result_is_unchanged(tmp_path: Path, rank: int) -> None:
    place = Place(tmp_path)
    passed(place.two_ranks(Job("whole", DROPOUT)))
    done = place.two_ranks(Job("killed", DROPOUT, [f"kill rank {rank}"]), options=[*TWO, "--max-restarts", "1"])
    passed(done)
    assert "SIGKILL" in done.stderr or "exitcode: -9" in done.stderr
    assert done.stderr.count("dragoman: torchrun: another process of this run ended unexpectedly") == 1
    assert state(place["whole"], 12) == state(place["killed"], 12)
    assert losses(place["whole"]) == losses(place["killed"])
    starts = json.loads((place["killed"] / "provenance.json").read_bytes())["starts"]
    assert [start["from_step"] for start in starts] == [0, 4]


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.two_ranks(Job("stopped", DROPOUT, ["signal rank 1"]))
    assert done.returncode != 0
    assert done.stderr.count("stopped by SIGTERM and saved at step 6; run the same command to resume") == 1
    assert [checkpoint_step(path) for path in checkpoints(place["stopped"])] == [4, 6]
    passed(place.two_ranks(Job("stopped", DROPOUT), Job("whole", DROPOUT)))
    assert state(place["whole"], 12) == state(place["stopped"], 12)
    assert losses(place["whole"]) == losses(place["stopped"])


@pytest.mark.slow
def test_a_signal_to_torchrun_saves_the_last_step(tmp_path: Path) -> None:
    place = Place(tmp_path)
    command = place.command("run", "train.max_steps=100000", "train.save_every=4")
    with subprocess.Popen([*TORCHRUN, *TWO, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("valid  step 4"):
                process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) != 0
    told = [line for line in said if line.startswith("dragoman: ")]
    newest = checkpoint_step(checkpoints(place["run"])[-1])
    assert newest >= 4
    assert told == [
        f"dragoman: {place['run']}: stopped by SIGTERM and saved at step {newest}; run the same command to resume\n"
    ]


@pytest.mark.slow
def test_out_of_memory_in_another_rank_is_reported_once(tmp_path: Path) -> None:
    done = Place(tmp_path).two_ranks(Job("run", [], ["no memory in rank 1"]))
    assert done.returncode != 0
    assert done.stderr.count("dragoman: ") == 1
    assert "dragoman: train.batch_tokens: out of memory at step 1 in a batch with " in done.stderr


@pytest.mark.slow
def test_nan_loss_in_one_rank_changes_no_weights_in_any_rank(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.two_ranks(Job("run", ["train.nonfinite_limit=3"], ["nan in rank 1"]))
    assert done.returncode != 0
    assert done.stderr.count("3 steps in a row: lower train.learning_rate or raise train.warmup_steps") == 1
    assert [record["step"] for record in log_of(place["run"], "nonfinite")] == [1, 2, 3]


@pytest.mark.slow
def test_config_error_is_reported_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done, said = redirected(tmp_path, place.command("run", "train.batch_tokns=3"))
    assert done.returncode != 0
    assert "".join(said.values()) == "dragoman: train.batch_tokns: unknown key; did you mean batch_tokens?\n"


@pytest.mark.slow
def test_only_rank_0_prints_and_a_changed_setting_is_refused_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done, said = redirected(tmp_path, place.command("run"))
    passed(done)
    assert said["1"] == ""
    assert "parameters on cpu in float32, padded batches, 2 processes (ddp)" in said["0"]
    assert f"{place['run']}: reached train.max_steps=12; kept " in said["0"]
    done, said = redirected(tmp_path / "again", place.command("run", "model.d_ff=96"))
    assert done.returncode != 0
    told = "".join(said.values())
    assert told.count("\n") == 1
    assert "model.d_ff was 64 when this run began and is 96 now; restore it, or give another --out" in told


# Several hosts


def two_hosts(command: Sequence[str], *options: str) -> list[subprocess.CompletedProcess[str]]:
    """Two torchruns with one process each that meet at a port, as on two machines that share their files."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    meeting = ["--rdzv-id", "test", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    host = ["--nnodes", "2", "--nproc-per-node", "1", "--local-addr", "localhost", *meeting, *options]
    hosts = [
        subprocess.Popen(
            [*TORCHRUN, *host, "--node-rank", str(number), *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    outputs = [host.communicate(timeout=PATIENCE) for host in hosts]
    return [
        subprocess.CompletedProcess(host.args, host.returncode, *output)
        for host, output in zip(hosts, outputs, strict=True)
    ]


@pytest.mark.slow
def test_two_hosts_match_one_process(tmp_path: Path) -> None:
    place = Place(tmp_path)
    hosts = two_hosts(place.command("hosts", "train.accumulate=2"))
    for host in hosts:
        passed(host)
    spoke = [host.stdout for host in hosts if host.stdout]
    assert len(spoke) == 1
    assert f"{place['hosts']}: reached train.max_steps=12; kept " in spoke[0]
    assert_same_run(place["hosts"], place.alone("alone", "train.accumulate=4"))


@pytest.mark.slow
def test_a_process_killed_on_one_host_is_replaced_on_both(tmp_path: Path) -> None:
    place = Place(tmp_path)
    passed(place.two_ranks(Job("whole", DROPOUT)))
    place.list_jobs(Job("killed", DROPOUT, ["kill rank 1"]))
    for host in two_hosts(place.script, "--max-restarts", "2"):
        passed(host)
    assert state(place["whole"], 12) == state(place["killed"], 12)


# Without torchrun


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    message = "train.device: process 2 of this machine has no GPU, there are 1; lower --nproc-per-node or set cpu"
    with pytest.raises(ConfigError) as caught:
        distributed._local_device("cuda", Ranks(1, 2, 1))
    assert str(caught.value) == message
    with pytest.raises(ConfigError, match=r"train\.device: cuda:0 names one GPU for all processes; use cuda or auto"):
        distributed._local_device("cuda:0", Ranks(0, 2, 0))


def test_error_is_unchanged_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(ConfigError, match="as it was"), distributed.report_error_once():
        raise ConfigError("as it was")


@pytest.mark.slow
def test_scaling_benchmark_runs_in_quick_mode() -> None:
    command = [sys.executable, "-m", "benchmarks.scaling", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    ratios = json.loads(done.stdout.splitlines()[-1])["ratios"]
    assert {"tiny, ddp, same global batch", "tiny, ddp, same batch a rank", "tiny, two apart"} <= ratios.keys()
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values())
