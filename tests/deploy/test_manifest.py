import json

import pytest

from tpo.deploy import manifest as manifests
from tpo.errors import ArtifactError, OutputError


def edit(library, change):
    path = manifests.manifest_path(library)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_round_trip(own_library):
    manifest = manifests.read(own_library)
    check = manifests.NumericCheck(
        reference="onnxruntime", max_abs_error=1e-5, max_rel_error=1e-6, tolerance="t", seeds=(0, 1)
    )
    changed = manifest.model_copy(update={"numeric_check": check})
    path = manifests.write(changed, own_library)
    assert path.name == "tiny.so.json"
    assert manifests.read(own_library) == changed
    assert sorted(item.name for item in path.parent.iterdir()) == ["tiny.onnx", "tiny.so", "tiny.so.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("garbage", "not JSON"),
        ("[1]", "not a manifest"),
        ("{}", "not a manifest"),
        ('{"schema_version": 1}', "broken at model"),
        ('{"schema_version": 99}', "version 99.*newer tpo"),
    ],
)
def test_foreign_manifests(own_library, text, message):
    manifests.manifest_path(own_library).write_text(text)
    with pytest.raises(ArtifactError, match=message):
        manifests.read(own_library)


def test_binary_manifest(own_library):
    manifests.manifest_path(own_library).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArtifactError, match="not JSON"):
        manifests.read(own_library)


def test_wrong_type_names_the_field(own_library):
    edit(own_library, lambda content: content["inputs"][0].update(shape="wide"))
    with pytest.raises(ArtifactError, match=r"broken at inputs\.0\.shape"):
        manifests.read(own_library)


def test_unwritable_folder(own_library, tmp_path):
    manifest = manifests.read(own_library)
    with pytest.raises(OutputError, match="cannot write"):
        manifests.write(manifest, tmp_path / "missing" / "m.so")
