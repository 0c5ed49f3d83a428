"""An .onnx file that reads other files is refused, wherever in it the tensor hides, before a runtime opens it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.artifacts.runtime_artifact import make_artifact
from onnx import TensorProto, helper, numpy_helper

from ondevice.backends.opening import Runtime, open_backend
from ondevice.contract.artifact import MANIFEST, Artifact, ArtifactError, open_artifact
from ondevice.contract.artifacts.onnx_file import refuse_external_data
from ondevice.contract.vocabulary import StepSpec

SPEC = StepSpec("two_convolutions", embedding_dim=4, image_shape=(1, 8, 8))


def outside(location: str) -> TensorProto:
    tensor = TensorProto(name="stolen", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def only_pointing(location: str) -> TensorProto:
    """With its numbers here, by its own words, and a place to read them from."""
    tensor = outside(location)
    tensor.data_location = TensorProto.DEFAULT
    return tensor


def subgraph(tensor: TensorProto) -> onnx.GraphProto:
    return helper.make_graph([], "inner", [], [], [tensor])


def sparse(tensor: TensorProto) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=tensor, dims=[2])


def in_node(**attributes: object) -> onnx.ModelProto:
    node = helper.make_node("If", [], ["y"])
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return helper.make_model(helper.make_graph([node], "g", [], []))


def in_training(tensor: TensorProto) -> onnx.ModelProto:
    model = in_node()
    model.training_info.add().algorithm.initializer.append(tensor)
    return model


def in_function(tensor: TensorProto) -> onnx.ModelProto:
    model = in_node()
    model.functions.append(
        helper.make_function("d", "f", [], ["y"], [helper.make_node("Constant", [], ["y"], value=tensor)], [])
    )
    return model


def in_sparse_initializer(tensor: TensorProto) -> onnx.ModelProto:
    model = in_node()
    model.graph.sparse_initializer.append(sparse(tensor))
    return model


HIDING: dict[str, Callable[[TensorProto], onnx.ModelProto]] = {
    "initializer": lambda tensor: helper.make_model(subgraph(tensor)),
    "constant": lambda tensor: in_node(value=tensor),
    "constants": lambda tensor: in_node(value=[tensor]),
    "subgraph": lambda tensor: in_node(then_branch=subgraph(tensor)),
    "subgraphs": lambda tensor: in_node(branches=[subgraph(tensor)]),
    "subgraph of a subgraph": lambda tensor: in_node(branch=in_node(inner=subgraph(tensor)).graph),
    "sparse constant": lambda tensor: in_node(value=sparse(tensor)),
    "sparse initializer": in_sparse_initializer,
    "function": in_function,
    "training": in_training,
}


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "secret.bin"])
@pytest.mark.parametrize("place", HIDING)
@pytest.mark.parametrize("pointing", [outside, only_pointing])
def test_a_tensor_that_points_outside_is_refused_by_name(
    place: str, location: str, pointing: Callable[[str], TensorProto], tmp_path: Path
) -> None:
    path = tmp_path / "step.onnx"
    path.write_bytes(HIDING[place](pointing(location)).SerializeToString())
    with pytest.raises(
        ArtifactError, match=r"step\.onnx: the tensor 'stolen' keeps its numbers in another file"
    ):
        refuse_external_data(path)
    path.write_bytes(
        HIDING[place](numpy_helper.from_array(np.ones(2, np.float32), "own")).SerializeToString()
    )
    refuse_external_data(path)


def test_the_walk_knows_every_message_of_onnx_that_leads_to_a_tensor() -> None:
    """Against the protobuf's own description, so that a newer ONNX with another way in fails here."""
    from ondevice.contract.artifacts.onnx_file import MESSAGES

    kinds = {
        "ModelProto": "model",
        "TrainingInfoProto": "training",
        "FunctionProto": "function",
        "GraphProto": "graph",
        "NodeProto": "node",
        "AttributeProto": "attribute",
        "SparseTensorProto": "sparse",
        "TensorProto": "tensor",
    }
    for name, kind in kinds.items():
        described = {
            field.number: kinds[field.message_type.name]
            for field in getattr(onnx, name).DESCRIPTOR.fields
            if field.message_type and field.message_type.name in kinds
        }
        assert MESSAGES[kind] == described, name


@pytest.mark.parametrize("damage", [b"\x3a\xff", b"\x3b\x00", b"\xff" * 12, b"\x38\x01"])
def test_what_is_no_onnx_file_is_refused(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    path.write_bytes(damage)
    with pytest.raises(ArtifactError, match="is not an ONNX file"):
        refuse_external_data(path)


@pytest.mark.parametrize(
    ("runtime", "name"),
    [("onnxruntime", "step.onnx"), ("onnxruntime-training", "ort_training/training_model.onnx")],
)
@pytest.mark.parametrize("location", ["../secret", "absolute", "secret"])
def test_no_backend_opens_an_artifact_that_reads_another_file(
    runtime: Runtime, name: str, location: str, tmp_path: Path
) -> None:
    artifact = make_artifact(tmp_path / "artifact", SPEC, runtime)
    open_backend(artifact, runtime)
    for place in (tmp_path / "secret", (artifact.directory / name).parent / "secret"):
        place.write_bytes(bytes(1 << 16))
    model = onnx.load(artifact.path(name))
    stolen = next(tensor for tensor in model.graph.initializer if tensor.raw_data)
    stolen.ClearField("raw_data")
    stolen.data_location = TensorProto.EXTERNAL
    stolen.external_data.add(
        key="location", value=str(tmp_path / "secret") if location == "absolute" else location
    )
    changed = rewritten(artifact, name, model.SerializeToString())
    with pytest.raises(ArtifactError, match="keeps its numbers in another file"):
        open_backend(changed, runtime)


def rewritten(artifact: Artifact, name: str, data: bytes) -> Artifact:
    """As a stranger would publish it: the manifest's hash is right."""
    (artifact.directory / name).write_bytes(data)
    manifest = json.loads((artifact.directory / MANIFEST).read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (artifact.directory / MANIFEST).write_text(json.dumps(manifest))
    return open_artifact(artifact.directory)
