"""What works in a checkout must be in the wheel too."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_on_disk_is_listed() -> None:
    folders = {"compilepool": ROOT / "compilepool", "compilepool.daemon": ROOT / "daemon"}
    folders["compilepool.protocol"] = ROOT / "protocol"
    found = set()
    for name, folder in folders.items():
        for init in folder.rglob("__init__.py"):
            below = init.parent.relative_to(folder).parts
            found.add(".".join([name, *below]))
    # Files only, and no code.
    found.add("compilepool.systemd")
    assert sorted(found) == SETTINGS["tool"]["setuptools"]["packages"]


def test_the_links_lead_to_the_folders() -> None:
    for name in ("daemon", "protocol"):
        assert (ROOT / "compilepool" / name).resolve() == ROOT / name


def test_every_module_of_the_daemon_is_under_the_import_rule() -> None:
    contracts = {c["name"]: c for c in SETTINGS["tool"]["importlinter"]["contracts"]}
    ruled = set(contracts["the daemon proper imports no client, no compiler and no pickle"]["source_modules"])
    modules = {f"compilepool.daemon.{path.stem}" for path in (ROOT / "daemon").glob("*.py") if path.stem != "__init__"}
    assert ruled == modules


@pytest.mark.parametrize(
    "module",
    ["compilepool", "compilepool.client", "compilepool.cli", "compilepool.daemon.main", "compilepool.protocol"],
)
def test_importing_loads_no_compiler(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'triton', 'cloudpickle') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_daemon_loads_no_client() -> None:
    code = "import sys, compilepool.daemon.main; print([m for m in sys.modules if m == 'compilepool.client'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
