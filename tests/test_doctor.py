import json
from importlib import metadata

import pytest

from tpo import doctor
from tpo.doctor import examine, ready


def by_name(findings):
    return {finding.name: finding for finding in findings}


def pretend(monkeypatch, **versions):
    """Have packages report other versions, None for not installed."""
    real = metadata.version

    def version(name):
        if name in versions:
            if versions[name] is None:
                raise metadata.PackageNotFoundError(name)
            return versions[name]
        return real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)


def test_this_machine_is_ready():
    findings = examine()
    found = by_name(findings)
    assert ready(findings)
    assert found["tvm-ffi"].value == metadata.version("apache-tvm-ffi")
    assert {"python", "tvm", "llvm", "onnxruntime", "cpu", "caches", "cores", "threads", "gpu"} <= set(found)
    json.dumps([finding.to_json() for finding in findings])


@pytest.mark.parametrize("version", ["0.1.15.post2", "0.1.13", None])
def test_a_wrong_ffi_is_found_without_importing_tvm(monkeypatch, version):
    pretend(monkeypatch, **{"apache-tvm-ffi": version})
    monkeypatch.setattr(doctor.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    findings = examine()
    assert not ready(findings)
    assert by_name(findings)["tvm-ffi"].status == "missing"
    assert by_name(findings)["tvm-ffi"].fix == "pip install 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"


def test_tvm_that_cannot_be_imported(monkeypatch):
    def fail(name):
        raise OSError("libtvm.so: cannot open shared object file")

    monkeypatch.setattr(doctor.importlib, "import_module", fail)
    findings = examine()
    assert not ready(findings)
    assert "libtvm.so" in by_name(findings)["llvm"].value
    assert "--force-reinstall" in by_name(findings)["llvm"].fix


def test_missing_packages(monkeypatch):
    pretend(monkeypatch, **{"apache-tvm": None})
    findings = examine()
    assert not ready(findings)
    assert "apache-tvm==0.27.0.post1" in by_name(findings)["tvm"].fix


def test_missing_optional_package(monkeypatch):
    pretend(monkeypatch, xgboost=None)
    findings = examine()
    assert ready(findings)
    assert by_name(findings)["xgboost"].fix == "pip install xgboost"


def test_missing_tools(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    found = by_name(examine())
    assert found["c++ compiler"].fix == "sudo apt install g++"
    assert found["qemu (Arm)"].status == "missing"
    assert not found["qemu (Arm)"].required
    assert not ready(list(found.values()))
