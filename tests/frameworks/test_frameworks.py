"""The blocks of docs/training/frameworks.md in the real frameworks: killed, resumed, every sample counted."""

from __future__ import annotations

import collections
import itertools
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch.multiprocessing

import shardio
from tests.frameworks.conftest import RECORDS
from tests.streaming.datasets import flat
from tests.suites.pages import code_of
from tests.torch.jobs import as_rank, finish

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.slow,
    pytest.mark.usefixtures("operators"),
    pytest.mark.timeout(900),  # Ray starts a cluster, and every process imports torch
    pytest.mark.filterwarnings("ignore"),
]
ROOT = Path(__file__).parents[2]
PAGE = "training/frameworks.md"
BIRDS, TOKENS = "s3://bucket/birds", "s3://bucket/tokens"


def run(heading: str, **replacements: str) -> dict:
    names: dict = {"__name__": "page"}
    exec(compile(code_of(PAGE, heading, **replacements), heading, "exec"), names)
    return names


def expected(url: str, global_batch: int, *, epochs: int = 1, feature: str = "label") -> list[list[int]]:
    """Return the numbers of the global batches of one process without a framework."""
    ds = shardio.open(url) if feature == "tokens" else shardio.open(url, "train")
    stream = shardio.stream(ds.select_columns([feature]), global_batch=global_batch, seed=0)
    batches = [batch[feature] for _ in range(epochs) for batch in stream]
    return [(batch[:, 0] if feature == "tokens" else batch).tolist() for batch in batches]


def test_timm_loads_every_image_once(birds) -> None:
    names = run("timm", **{f'"{BIRDS}"': repr(birds) + ', "train"', "batch_size=64": "batch_size=10"})
    labels: collections.Counter = collections.Counter()
    for images, targets in names["loader"]:
        assert images.shape == (10, 3, 224, 224)
        labels.update(targets.tolist())
    assert labels == collections.Counter(range(RECORDS))
    transform = names["images"].transform
    names["images"].transform = np.asarray
    pixels, label = names["images"][7]
    assert (pixels.shape, label) == ((10, 12, 3), 7)
    names["images"].transform = transform


@pytest.mark.parametrize("workers", [0, 2])
def test_open_clip_sees_every_pair_once(birds, tmp_path, workers, monkeypatch) -> None:
    from open_clip_train.data import get_data
    from open_clip_train.params import parse_args

    with shardio.DatasetWriter(tmp_path / "captions", {"jpg": "jpeg", "txt": "text"}) as out:
        for value in shardio.open(birds, "train"):
            out.write({"jpg": value["image"], "txt": f"{value['label']}"})
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    parts = {"s3://bucket/captions": str(tmp_path / "captions"), "{0..7}/8": "{0..3}/4"}
    options = run("open_clip", **parts)["options"]
    sizes = ["--train-num-samples", str(RECORDS), "--batch-size", "5", "--workers", str(workers)]
    args = parse_args([*options, *sizes])
    args.rank, args.world_size, args.distributed = 0, 1, False
    train = get_data(args, (np.asarray, np.asarray), tokenizer=lambda text: [int(text)])["train"]
    batches = itertools.islice(train.dataloader, RECORDS // 5)
    assert sorted(flat(texts.tolist() for _, texts in batches)) == list(range(RECORDS))


LIGHTNING = """
import json, os, signal, sys
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(1, 1), 0
    def training_step(self, batch, index):
        self.calls += 1
        if self.calls == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        print(json.dumps(batch["label"].tolist()), file=OUT, flush=True)
        return self.layer(batch["label"][:, None].float()).mean()
    def validation_step(self, batch, index):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)

KILL, OUT = int(sys.argv[1]), open(sys.argv[2], "a")
saves = ModelCheckpoint(dirpath=sys.argv[3], filename="{step}", every_n_train_steps=3, save_top_k=-1)
trainer = L.Trainer(max_epochs=2, callbacks=[saves], accelerator="cpu", devices=1, logger=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), datamodule=Birds(), ckpt_path=sys.argv[4] if len(sys.argv) > 4 else None)
"""


def test_a_lightning_module_is_killed_and_resumes(birds, tmp_path) -> None:
    code = code_of(PAGE, "Lightning", **{BIRDS: birds, "256": "10"})
    (tmp_path / "train.py").write_text(code + LIGHTNING)

    def job(kill: int, out: Path, *resume: Path) -> int:
        command = [sys.executable, str(tmp_path / "train.py"), str(kill), str(out), str(tmp_path / "saved")]
        # Lightning imports a torchvision that it finds, and this one's operators are not those of this torch.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [*command, *map(str, resume)], cwd=ROOT, env=environment, check=False, timeout=600
        ).returncode

    assert job(15, tmp_path / "first") == -signal.SIGKILL
    assert job(0, tmp_path / "second", tmp_path / "saved" / "step=12.ckpt") == 0
    first, second = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("first", "second")
    )
    assert first == expected(birds, 10, epochs=2)[:14]
    assert second == expected(birds, 10, epochs=2)[12:]


def test_ray_starts_killed_workers_again(birds, tmp_path) -> None:
    """One of two workers is killed in mid-epoch: training continues from the last report by itself."""
    code = code_of(PAGE, "Ray", **{f'"{BIRDS}"': f'{birds!r}, "train"', "256": "10", "1000": "3"})
    script = """
import os, signal
import ray

FOLDER = os.environ["FOLDER"]

def step(batch):
    rank = ray.train.get_context().get_world_rank()
    with open(f"{FOLDER}/seen-{rank}", "a+") as out:
        out.seek(0)
        if rank == 1 and len(out.readlines()) == 15 and not os.path.exists(f"{FOLDER}/killed"):
            open(f"{FOLDER}/killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        out.write(json.dumps(batch["label"].tolist()) + chr(10))

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
fit(step, FOLDER + "/runs")
"""
    (tmp_path / "train.py").write_text(code + script)
    environment = {**os.environ, "FOLDER": str(tmp_path), "RAY_TRAIN_V2_ENABLED": "1"}
    environment["RAY_agent_register_timeout_ms"] = "300000"  # on a busy machine agents start slowly
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")], cwd=ROOT, env=environment, check=False,
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "killed").exists()
    shares = [
        [json.loads(line) for line in (tmp_path / f"seen-{rank}").read_text().splitlines()]
        for rank in range(2)
    ]
    whole = expected(birds, 10, epochs=3)
    # Rank 1 stopped before step 15; both continued after a report of every third step.
    resumed = len(whole) - (len(shares[1]) - 15)
    assert resumed % 3 == 1 or resumed % 10 % 3 == 0
    assert shares[1] == [batch[5:] for batch in whole[:15] + whole[resumed:]]
    assert shares[0][-(len(whole) - resumed) :] == [batch[:5] for batch in whole[resumed:]]


def megatron(rank: int, folder: Path, url: str, consumed: int, micro: int, iterations: int) -> None:
    """Do as build_train_valid_test_data_iterators and train_step do with --dataloader-type external."""
    from megatron.core import parallel_state
    from megatron.core.rerun_state_machine import RerunDataIterator

    parallel_state.initialize_model_parallel()
    args = types.SimpleNamespace(
        consumed_train_samples=consumed, global_batch_size=20, micro_batch_size=micro
    )
    training = types.ModuleType("megatron.training")
    training.get_args = lambda: args
    sys.modules["megatron.training"] = training
    names = run("Megatron", **{TOKENS: url})
    dataloader, _, _ = names["train_valid_test_datasets_provider"]([0, 0, 0])
    iterator = RerunDataIterator(dataloader)
    share = args.global_batch_size // parallel_state.get_data_parallel_world_size()
    with (folder / f"rank-{rank}").open("w", encoding="utf-8") as out:
        for _ in range(iterations):
            batches = [next(iterator)["tokens"][:, 0].tolist() for _ in range(share // micro)]
            assert {len(batch) for batch in batches} == {micro}
            out.write(json.dumps(flat(batches)) + "\n")


def test_megatron_resumes_on_other_ranks(numbers, tmp_path) -> None:
    """Two data-parallel ranks, then four: the iterations are those of one process, over two epochs."""
    seen = []
    for ranks, consumed, micro, iterations in ((2, 0, 5, 7), (4, 7 * 20, 1, 3)):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        context = torch.multiprocessing.get_context("fork")
        arguments = (folder, megatron, numbers, consumed, micro, iterations)
        jobs = [context.Process(target=as_rank, args=(rank, ranks, *arguments)) for rank in range(ranks)]
        for job in jobs:
            job.start()
        assert finish(jobs, 400) == [0] * ranks
        shares = [
            [json.loads(line) for line in (folder / f"rank-{rank}").read_text().splitlines()]
            for rank in range(ranks)
        ]
        seen += [flat(step) for step in zip(*shares, strict=True)]
    assert seen == expected(numbers, 20, epochs=2, feature="tokens")


def test_nemo_resumes_each_rank(numbers, tmp_path, monkeypatch) -> None:
    from nemo_automodel.components.config.loader import ConfigNode, set_enable_user_modules
    from nemo_automodel.components.datasets.loader import DataloaderConfig, make_dataset_config

    (tmp_path / "data.py").write_text(code_of(PAGE, "NeMo", **{TOKENS: numbers}))
    monkeypatch.chdir(tmp_path)
    set_enable_user_modules(allow=True)
    recipe = ConfigNode({"dataset": {"_target_": "data.py:build"}})
    dataset = make_dataset_config(recipe.dataset._target_)

    def loader(rank: int):
        config = DataloaderConfig(dataset_config=dataset, batch_size=5, collate_fn=collate)
        return config.build(dp_rank=rank, dp_world_size=2)

    def collate(examples: list) -> list[int]:
        return [int(example["input_ids"][0]) for example in examples]

    whole = list(zip(loader(0), loader(1), strict=True))
    assert sorted(flat(flat(step) for step in whole)) == list(range(RECORDS))
    rest = []
    for rank in range(2):
        first = loader(rank)
        iterator = iter(first)
        assert [next(iterator) for _ in range(4)] == [step[rank] for step in whole[:4]]
        resumed = loader(rank)
        resumed.load_state_dict(json.loads(json.dumps(first.state_dict(), default=str)))
        rest.append(list(resumed))
    assert list(zip(*rest, strict=True)) == whole[4:]
