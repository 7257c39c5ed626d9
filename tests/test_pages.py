"""The Python of README and of all pages runs as it is printed, against servers of its own.

The pages assume data and no names: a folder `photos/` of images by class, datasets and files in a bucket.
What stands for an account or machine of the reader's is listed here, and what takes its place.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tokenize
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fsspec.config
import numpy as np
import pytest
from PIL import Image

import shardio
from shardio import cli
from tests.servers import azure, gcs, s3
from tests.servers.web import folder_server
from tests.suites.commands import command_names
from tests.suites.offered import offered

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if BLOCK.search(path.read_text(encoding="utf-8"))
)
# Tested where real trainers run, and where a whole corpus is made.
ELSEWHERE = {
    "docs/curating.md": "tests/lifecycle/test_page.py",
    "docs/training/frameworks.md": "tests/frameworks/test_frameworks.py",
    "docs/training/jax.md": "tests/jax/in_jax.py",
    "docs/engines.md": "tests/engines/test_page.py",
    "docs/finding.md": "tests/test_finding.py",
    "docs/training/torchrun.md": "tests/torch/test_script_pages.py",
    "docs/training/transformers.md": "tests/torch/test_training_pages.py",
    "docs/training/language-models.md": "tests/test_walkthroughs.py",
}
# Those that train from three datasets of birds.
STREAMS = {
    f"docs/{name}.md"
    for name in (
        "streaming", "shuffling", "resuming", "selecting", "sizes",
    )
}  # fmt: skip
# Quick ones; the others start clusters and servers, or train.
EVERY_RUN = {"docs/index.md", "docs/adoption.md", "docs/coming-from.md"}
# What a newcomer reads first warns of nothing.
SILENT = {"docs/quickstart.md"}
BIRDS = 600


@pytest.fixture(scope="module")
def dask_address() -> Iterator[str]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster.scheduler_address


def write_birds(url: str, count: int = BIRDS) -> None:
    schema = {"image": "uint8[8,8,3]", "label": "int64", "caption": "text", "photographer": "text"}
    with shardio.DatasetWriter(url, schema=schema, mode="overwrite") as out:
        for n in range(count):
            image = np.full((8, 8, 3), n % 256, np.uint8)
            caption, photographer = "" if n % 3 else "a wren", f"person {n % 40}"
            bird = {"image": image, "label": n % 10, "caption": caption, "photographer": photographer}
            out.write(bird, split="train")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder, but for the data that pages assume."""
    for species in ("cat", "dog"):
        (tmp_path / "photos" / species).mkdir(parents=True)
        for n in range(3):
            Image.new("RGB", (40 + n, 30), (n, 90, 200)).save(tmp_path / "photos" / species / f"{n}.jpg")
    names = sorted((tmp_path / "photos").rglob("*.jpg"))
    lines = [f"{path.relative_to(tmp_path)} {n % 2}\n" for n, path in enumerate(names)]
    (tmp_path / "data_list.txt").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "lines.jsonl").write_text('{"score": 1, "text": "wren"}\n' * 3, encoding="utf-8")
    with shardio.DatasetWriter(tmp_path / "made", schema={"n": "int64"}) as out:
        for n in range(20):
            out.write({"n": n}, split="train")
    (tmp_path / "old").mkdir()
    for path in (tmp_path / "made" / "data").glob("*.tfrecord"):
        (tmp_path / "old" / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def s3_bucket(moto_endpoint, monkeypatch, folder) -> str:
    """An empty `s3://bucket`, found by the variables of AWS."""
    variables = {
        "AWS_ENDPOINT_URL": moto_endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(folder / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
    }
    (folder / "config").write_text(
        "[profile work]\naws_access_key_id = testing\naws_secret_access_key = testing\n", encoding="utf-8"
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    clean_s3(moto_endpoint)
    return moto_endpoint


def clean_s3(endpoint: str) -> None:
    """Leave nothing in the buckets that the pages name; other tests keep theirs on this server."""
    for name in ("bucket", "public"):
        s3.remove_bucket(endpoint, name)
    s3.make_bucket(endpoint, "bucket")


def stand_in(name: str, **names: object) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(names)
    return module


class Frame:
    """As much of a Spark frame as the page uses: three partitions, one after another in this process."""

    def __init__(self) -> None:
        self.rdd = self
        self.partition = 0

    def getNumPartitions(self) -> int:  # noqa: N802
        return 3

    def foreachPartition(self, write) -> None:  # noqa: N802
        for self.partition in range(3):
            write([mock.Mock(asDict=lambda n=n: {"id": n, "text": str(n)}) for n in range(4)])

    def partitionId(self) -> int:  # noqa: N802
        return self.partition


def places(request: pytest.FixtureRequest, page: str, folder: Path) -> dict[str, str]:  # noqa: C901, PLR0912, PLR0915 - a case a page
    """Prepare what a page assumes; return what the page says of the reader's own, and its stand-ins."""
    s3_endpoint = request.getfixturevalue("s3_bucket")
    monkeypatch = request.getfixturevalue("monkeypatch")
    match page:
        case "README.md":
            image = (folder / "photos" / "cat" / "1.jpg").read_bytes()
            schema = {"image": "jpeg", "label": "int64", "caption": "text"}
            with shardio.DatasetWriter(folder / "shards", schema=schema, shards=4) as out:
                for n in range(10_000):
                    out.write({"image": image, "label": n % 10, "caption": f"bird {n}"}, split="train")
            for number, shard in enumerate(sorted((folder / "shards" / "data").glob("*.tfrecord"))):
                key = f"bucket/birds/train-{number:05d}-of-00004.tfrecord"
                fsspec.filesystem("s3").put_file(str(shard), key)
            for command, output in commands(page):
                prints(command, output)
        case _ if page in STREAMS:
            for name in ("birds", "books", "web"):
                write_birds(f"s3://bucket/{name}")
            monkeypatch.setitem(sys.modules, "wandb", stand_in("wandb", init=mock.Mock()))
            board = stand_in("torch.utils.tensorboard", SummaryWriter=mock.Mock())
            monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
        case "docs/verify.md":
            write_birds("s3://bucket/birds")
            fsspec.filesystem("s3").get("bucket/birds", str(folder / "backup"), recursive=True)
            return {"/backup/birds": str(folder / "backup")}
        case "docs/object-stores.md":
            write_birds("s3://bucket/birds", 3)
            s3.make_bucket(s3_endpoint, "public")
            write_birds("s3://public/birds", 3)
            public = fsspec.filesystem("s3")
            for path in public.find("public"):
                public.chmod(path, "public-read")
            write_birds(str(folder / "site" / "birds"), 3)
            options = gcs.options_for(request.getfixturevalue("gcs_endpoint"))
            monkeypatch.setitem(fsspec.config.conf, "gs", options)
            endpoint = request.getfixturevalue("azurite_endpoint")
            monkeypatch.setitem(fsspec.config.conf, "az", azure.options_for(endpoint))
            container = azure.make_container(endpoint)
            write_birds(f"gs://{gcs.BUCKET}/birds", 3)
            write_birds(f"az://{container}/birds", 3)
            return {
                "https://example.org": request.getfixturevalue("site"),
                "gs://bucket": f"gs://{gcs.BUCKET}",
                "az://container": f"az://{container}",
                '"token": "/path/to/key.json"': '"token": "anon"',
                '"account_name": "...", "account_key": "..."': f'"account_name": "{azure.ACCOUNT}"',
                '"http://127.0.0.1:9000"': f'"{s3_endpoint}"',
                '"key": "...", "secret": "..."': '"key": "testing", "secret": "testing"',
                "/nvme/cache": str(folder / "cache"),
            }
        case "docs/adoption.md":
            for split in ("train", "val"):
                member = io.BytesIO()
                with tarfile.open(fileobj=member, mode="w") as tar:
                    tar.add(folder / "photos" / "cat" / "1.jpg", "1.jpg")
                fsspec.filesystem("s3").pipe_file(f"bucket/birds/{split}.tar", member.getvalue())
            image = (folder / "photos" / "cat" / "1.jpg").read_bytes()
            with shardio.DatasetWriter(folder / "made2", schema={"image": "jpeg", "label": "int64"}) as out:
                for n in range(300):
                    out.write({"image": image, "label": n % 5}, split="train" if n % 5 else "val")
            for split in ("train", "val"):
                (shard,) = (folder / "made2" / "data").glob(f"{split}-*.tfrecord")
                fsspec.filesystem("s3").pipe_file(
                    f"bucket/flowers/{split}-00000.tfrecord", shard.read_bytes()
                )
            prints(*commands(page)[0])
        case "docs/parallel.md":
            frame = Frame()
            session = mock.Mock()
            session.builder.getOrCreate().read.parquet.return_value = frame
            spark = stand_in("pyspark", TaskContext=mock.Mock(get=lambda: frame))
            monkeypatch.setitem(sys.modules, "pyspark", spark)
            monkeypatch.setitem(sys.modules, "pyspark.sql", stand_in("pyspark.sql", SparkSession=session))
            return {"tcp://scheduler:8786": request.getfixturevalue("dask_address")}
        case "docs/training/images.md":
            image = (folder / "photos" / "cat" / "1.jpg").read_bytes()
            with shardio.DatasetWriter(
                "s3://bucket/birds", schema={"image": "jpeg", "label": "int64"}
            ) as out:
                for n in range(512):
                    out.write({"image": image, "label": n % 10}, split="train")
            # Tested with the real one by `make frameworks`: that of PyPI brings another torch.
            v2 = mock.Mock()
            monkeypatch.setitem(sys.modules, "torchvision", stand_in("torchvision"))
            transforms = stand_in("torchvision.transforms", v2=v2)
            monkeypatch.setitem(sys.modules, "torchvision.transforms", transforms)
        case "docs/coming-from.md":
            for name in ("books", "web"):
                write_birds(f"s3://bucket/{name}")
            foreign = ROOT / "tests" / "golden" / "foreign"
            for name, source in {
                "shards": "webdataset",
                "mds": "mds/plain",
                "records": "codewithgpu",
            }.items():
                shutil.copytree(foreign / source, folder / name)
                (folder / name / "expected.json").unlink(missing_ok=True)
            image = (folder / "photos" / "cat" / "1.jpg").read_bytes()
            with shardio.DatasetWriter(
                folder / "examples", schema={"image": "jpeg", "label": "int64"}
            ) as out:
                for n in range(20):
                    out.write({"image": image, "label": n}, split="train")
            (folder / "tfrecords").mkdir()
            for path in (folder / "examples" / "data").glob("*.tfrecord"):
                (folder / "tfrecords" / path.name).write_bytes(path.read_bytes())
        case "docs/encodings.md":
            compiler = ROOT / ".build" / "pbenv" / "bin" / "python"
            source = ROOT / "examples" / "sightings" / "new"
            arguments = [f"-I{source}", f"--python_out={folder}", source / "sighting.proto"]
            subprocess.run([compiler, "-m", "grpc_tools.protoc", *arguments], check=True)
            monkeypatch.syspath_prepend(folder)
    return {}


@pytest.fixture
def site(folder) -> Iterator[str]:
    (folder / "site").mkdir(exist_ok=True)
    with folder_server(folder / "site") as url:
        yield url


def commands(page: str) -> list[tuple[str, str]]:
    """Return the commands of `shardio` that a page shows, each with its output."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```console\n\$ shardio (.*?)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def prints(command: str, output: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main(shlex.split(command)) == 0
    assert printed.getvalue() == output


def with_claims(code: str, page: str) -> ast.Module:
    """Return the code of a block that also compares values with comments beside them: `len(ds)  # 1000`."""
    tree = ast.parse(code, page)
    said = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    for node in tree.body:
        if not isinstance(node, ast.Expr) or "..." in said.get(node.end_lineno or 0, "..."):
            continue
        try:
            wanted = ast.parse(said[node.end_lineno or 0], mode="eval").body
            ast.literal_eval(wanted)
        except (SyntaxError, ValueError):
            continue  # words
        where = ast.Constant(f"{page}:{node.lineno}")
        node.value = ast.Call(ast.Name("claimed__", ast.Load()), [where, node.value, wanted], [])
    return ast.fix_missing_locations(tree)


def claimed(where: str, found: object, wanted: object) -> None:
    assert found == wanted, where


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page in EVERY_RUN else (pytest.mark.slow, pytest.mark.sampled(2)))
        for page in PAGES
        if page not in ELSEWHERE
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_page_runs_as_it_is_printed(request, page, folder, monkeypatch) -> None:
    if page in SILENT:
        warnings.simplefilter("error")  # until the end of the test
    text = (ROOT / page).read_text(encoding="utf-8")
    taken = places(request, page, folder)
    # Functions of the page travel to worker processes by the name of their module.
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    vars(module)["claimed__"] = claimed
    for block in BLOCK.finditer(text):
        code = block[1]
        for printed, own in taken.items():
            code = code.replace(printed, own)
        # Errors show the line of the page.
        lines = "\n" * (text.count("\n", 0, block.start()) + 1)
        exec(compile(with_claims(lines + code, page), page, "exec"), vars(module))
    if page == "docs/training/images.md":
        module.fit(folder / "checkpoint.pt")


def test_pages_that_run_elsewhere_are_there() -> None:
    for page, test in ELSEWHERE.items():
        assert page in PAGES
        name = Path(page).stem
        assert name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not speak of {name}"


def test_every_public_name_stands_in_the_reference() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    named = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    assert "shardio.errors" in named, "the page that lists all errors"
    public = {f"shardio.{name}" for name in shardio.__all__ if name not in shardio.errors.__all__}
    public |= {f"shardio.torch.{name}" for name in importlib.import_module("shardio.torch").__all__}
    assert public - named == set()


def test_troubleshooting_quotes_what_errors_say() -> None:
    """Words in the first column of the page stand in a message of the sources, or name an error."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        text
        for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        for text in re.findall("`([^`]+)`", row)
    ]
    assert len(quoted) > 15
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "shardio").rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", source)
    # Where a text begins with what is filled in, that alone would be tried at each letter of the sources.
    patterns = {
        text: re.sub(r"(\\\.){3}|'x'|block", ".{0,80}", re.escape(text)).removeprefix(".{0,80}")
        for text in quoted
    }
    assert [text for text, each in patterns.items() if not re.search(each, said, re.DOTALL)] == []


def test_what_public_functions_report_stands_in_the_reference() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    named = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", pages, re.MULTILINE)} | {
        "BadRecord"
    }
    kinds = re.compile(r".*(Report|Stats|Progress|Finding|Location|Mixing|Note|Record)")
    rooms = ["catalog", "codecs", "convert", "lifecycle", "maintenance", "order", "packing", "parallel"]
    rooms += ["reader", "streaming", "torch", "writer"]
    names = {name for room in rooms for name in offered(importlib.import_module(f"shardio.{room}"))}
    assert {name for name in names if kinds.fullmatch(name)} - named == set()


def test_every_command_stands_on_its_page() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    table = page.partition("## ")[0]
    assert [name for name in command_names() if f"`shardio {name} " not in table] == []
