"""Small sound files of every kind, made by code: what the campaign damages."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import opdebug_payloads as opdebug
import tfdbg_files as tfdbg
import torch_files as torch
from builders import graph_op, out_tensor, text_graph, write_dump
from h5_files import GPU, add_tensor
from msprobe_files import dump_text, forward, literal, tensor
from om_files import model_def, om_bytes
from safetensors_files import entry, safetensors_bytes, with_header
from torch_files import torch_bytes, torch_entries

from fuzzing.structures import MessageSeed, parsed
from precision_tool.lib.compare.columns import METRIC_COLUMNS
from precision_tool.lib.compare.noise import Noise, write_noise
from precision_tool.lib.compare.result_files import ResultSource, write_source
from precision_tool.lib.data import graph_cache as cache
from precision_tool.lib.demo.dump_writer import OutTensor, write_statistics
from precision_tool.lib.io.ge_graph import load_graph_bytes
from precision_tool.lib.io.ge_graph_export import export_graph
from precision_tool.lib.io.opdebug import decode_status, document_text
from precision_tool.lib.model.graph import TensorDesc
from precision_tool.lib.training.acl_json import acl_config

#: A `.npy` has its data behind the header; this is enough for every shape the campaign asks for.
NPY_DATA = bytes(range(64))


def _values(*shape: int, dtype: Any = np.float32) -> Any:
    return (np.arange(math.prod(shape)).reshape(shape) % 7 - 2).astype(dtype)


# ---- dumps


def dumps(folder: Path) -> list[bytes]:
    """Dump files of both versions: plain and blocked layouts, several types, no data, no outputs."""
    packed = OutTensor.packed(_values(1, 2, 3, 17), "NC1HWC0", "NHWC", address=1 << 40, original_op=("conv", 0))
    fractal = OutTensor.packed(_values(5, 20), "FRACTAL_NZ", "ND")
    small = OutTensor(data=bytes(range(16)), dtype="int4", shape=(32,))
    kinds = [_values(3, dtype=np.int64), _values(2, 2, dtype=ml_dtypes.bfloat16), np.array([True, False])]
    found = []
    for version in (1, 2):
        cases: tuple[tuple[Sequence[Any], Sequence[Any]], ...] = (
            ([_values(2, 3)], [_values(4), np.zeros((0, 2), np.float16)]),
            ([packed], [fractal, small]),
            (kinds, [np.array(1.5)]),
            ([], []),
        )
        for inputs, outputs in cases:
            path = folder / "Add.op.1.1.1772443800000000"
            write_dump(path, "scope/op", inputs, outputs, version)
            found.append(path.read_bytes())
    return found


def dump_messages(folder: Path) -> list[MessageSeed]:
    """The headers of version 2 dumps as messages, with the length before them right again."""
    found = []
    for data in dumps(folder):
        (length,) = struct.unpack("<Q", data[:8])
        message = parsed(data[8 : 8 + length]) if length <= len(data) - 8 else None
        if message:
            found.append(MessageSeed(message, _behind_length(data[8 + length :])))
    assert len(found) >= 3
    return found


def _behind_length(rest: bytes) -> Callable[[bytes], bytes]:
    return lambda message: struct.pack("<Q", len(message)) + message + rest


def npys(folder: Path) -> list[bytes]:
    """Arrays in both orders and byte orders, of all ranks."""
    del folder
    arrays = [
        _values(2, 3), np.asfortranarray(_values(3, 4)), _values(5, dtype=">f8"), np.float32(3), _values(0, 2),
        _values(4, dtype=np.float16), _values(2, 2, dtype=np.complex64), _values(6, dtype=np.uint64), np.array([True]),
        _values(4, dtype=ml_dtypes.bfloat16), np.array([np.nan, np.inf, -np.inf, 0]),
    ]  # fmt: skip
    return [saved(array) for array in arrays]


def saved(array: Any) -> bytes:
    """What numpy.save writes."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def statistics(folder: Path) -> list[bytes]:
    """Statistics of two tensors, and of none."""
    path = folder / "statistics.csv"
    found = []
    for tensors in ([_values(2, 3), _values(4, dtype=np.int32)], []):
        write_statistics(path, [*map(out_tensor, tensors)], [out_tensor(_values(7, dtype=np.float16))])
        found.append(path.read_bytes())
    return found


def events(folder: Path) -> list[bytes]:
    """Tensors of tfdbg with plain content, packed and single values, and without numbers."""
    del folder
    ones = b"".join(tfdbg.number(7, value) for value in (1, 2, 300))
    tensors = [
        tfdbg.tensor_proto("float32", (2, 3), tfdbg.content(_values(2, 3).tobytes())),
        tfdbg.tensor_proto("float64", (), tfdbg.content(struct.pack("<d", 2.5))),
        tfdbg.tensor_proto("float32", (3,), tfdbg.sized(5, struct.pack("<3f", 1, 2, 3))),
        tfdbg.tensor_proto("int32", (3,), tfdbg.sized(7, b"".join(map(tfdbg.varint, (1, 2, 300))))),
        tfdbg.tensor_proto("int32", (2, 5), ones),
        tfdbg.tensor_proto("bfloat16", (4,), tfdbg.sized(13, tfdbg.varint(16256))),
        tfdbg.tensor_proto("complex64", (2,), tfdbg.sized(9, struct.pack("<4f", 1, 2, 3, 4))),
        tfdbg.tensor_proto("bool", (2,), tfdbg.sized(11, b"\1\0")),
        tfdbg.tensor_proto("string", (1,), tfdbg.sized(8, b"text")),
        tfdbg.tensor_proto("int64", (0, 4)),
        tfdbg.tensor_proto("float32", (4,)),
    ]
    return [tfdbg.event(tensor, "scope/op") for tensor in tensors]


def messages_of(files: Sequence[bytes]) -> list[MessageSeed]:
    """The files that are one message as a whole."""
    return [MessageSeed(message) for data in files if (message := parsed(data))]


# ---- PyTorch


def h5s(folder: Path) -> list[bytes]:
    """PyTorch dumps: contiguous and chunked, with and without filters, strides, parameters, odd attributes, links."""
    path = folder / "seed.h5"
    found = []
    options: tuple[dict[str, Any], ...] = (
        {}, {"chunks": (2, 2)}, {"chunks": (2, 2), "compression": "gzip"}, {"chunks": (1, 3), "compression": "lzf"},
        {"chunks": (2, 3), "fletcher32": True, "shuffle": True},
    )  # fmt: skip
    for device, each in enumerate(options):
        with h5py.File(path, "w", libver="earliest" if device % 2 == 0 else "latest") as file:
            add_tensor(file, "Addmm/1/input/mat1", _values(3, 5), **each)
            add_tensor(file, "Addmm/1/output/result", _values(5, 3, dtype=np.float16), GPU, stride=(1, 5), **each)
            add_tensor(file, "Relu/2/output/tensors/0", _values(4, 3, dtype=np.int64), **each)
            add_tensor(file, "Relu/2/input/inplace", np.array([1]), kind=3)
            if not each:
                add_tensor(file, "Relu/3/output/x", np.array(1.5))
                file["Relu/4/output/y"] = h5py.SoftLink("/Relu/3/output/x")
        found.append(path.read_bytes())
        path.unlink()
    return found


def torches(folder: Path) -> list[bytes]:
    """`.pt` files: types, views, a parameter, a tensor of an NPU, the other byte order, an archive of 64 bits."""
    del folder
    base = _values(24)
    plain = torch.tensor_opcodes("float32", 24, (2, 3, 4), (12, 4, 1))
    npu = torch.tensor_opcodes(
        "float32", 24, (24,), (1,), function="torch_npu.utils.storage\n_rebuild_npu_tensor", more=torch.whole(2)
    )
    parameter = b"ctorch._utils\n_rebuild_parameter\n" + plain + b"\x88ccollections\nOrderedDict\n)R\x87R"
    lazy = torch.tensor_opcodes("float32", 24, (24,), (1,), more=b"}" + torch.text("neg") + b"\x89s")
    data = base.tobytes()
    return [
        torch_bytes(base), torch_bytes(_values(2, 2, dtype=ml_dtypes.bfloat16)), torch_bytes(np.array(True)),
        torch_bytes(_values(4, dtype=np.uint16)), torch_bytes(_values(2, dtype=np.complex64)),
        torch_bytes(base, (1, 4, 12), 0, (4, 3, 2)), torch_bytes(base, (12, 2), 5, (2, 3)),
        torch_bytes(base, (0, 1), 0, (5, 4)),
        *(torch.archive(torch_entries(opcodes, data)) for opcodes in (parameter, npu, lazy)),
        torch.archive(torch_entries(plain, base.astype(">f4").tobytes(), b"big")),
        torch.archive_64(torch_entries(plain, data)),
    ]  # fmt: skip


def safetensors(folder: Path) -> list[bytes]:
    """`.safetensors` files: types, empty tensors, scalars, metadata, entries in another order than their bytes."""
    del folder
    header = {"b": entry("F32", [2], 3, 11), "a": entry("I8", [3], 0, 3), "none": entry("BF16", [0, 7], 11, 11)}
    return [
        safetensors_bytes({"a": _values(2, 3), "b": _values(4, dtype=ml_dtypes.bfloat16), "s": np.array(True)}),
        safetensors_bytes({"x.weight": _values(3, dtype=ml_dtypes.float8_e4m3fn)}, {"format": "pt"}),
        safetensors_bytes({"c": _values(2, dtype=np.complex64), "l": _values(2, 2, dtype=np.int64)}),
        with_header(header, bytes(range(11))),
    ]


def msprobes(folder: Path) -> list[bytes]:
    """msprobe's `dump.json` in several forms of JSON, its `stack.json` and `construct.json`."""
    del folder
    one = tensor(_values(2, 3), "Torch.add.0.forward.input.0.pt", md5="0a1b2c3d")
    two = tensor(_values(3, dtype=np.int64), placements=[{"Shard": {"dim": 0}}])
    shape = {"type": "torch.Size", "value": [2, -1]}
    entries = {
        "Torch.add.0.forward": forward(one, literal(2), [literal(1.5), None], output=[one], alpha=literal(True)),
        "Module.blocks.0.Linear.forward.0": {**forward(two, shape), "parameters": {"bias": one}},
        "Tensor.__getitem__.0.forward": forward(two, {"type": "slice", "value": [0, None, 2]}, literal('a {[é\n"')),
        "Module.blocks.0.Linear.parameters_grad.0": {"bias": [two]},
        "Torch.add.0.backward": {"input": [one, two], "output": [one, None], "is_recompute": True},
    }
    document = json.loads(dump_text(entries))
    stack = {"0": [list(entries)[:2], ["File x.py, line 3, in f, \n y = x[0]"]], "1": [["c"], []]}
    construct = {"Torch.add.0.forward": "Module.blocks.0.Linear.forward.0", "b": None, "c": ["b", 1]}
    return [
        dump_text(entries).encode(), json.dumps(document).encode(), json.dumps(document, indent=0).encode(),
        json.dumps({**document, "level": "L1"}, indent=4, ensure_ascii=False).encode(),
        json.dumps(stack, indent=1).encode(), json.dumps(construct, indent=1).encode(),
    ]  # fmt: skip


# ---- graphs

_GRAPH = r"""graph {
  name: "main"
  op {
    name: "x"
    type: "Data"
    attr { key: "_parent_node_index" value { i: 1 } }
    attr { key: "other" value { bt: "\177ELF } {\n \"op {\" \\" f: -1.5e-3 b: true } }
    attr { key: "list" value { list { i: [1, 2] i: 3 s: "a" s: 'b' val_type: VT_LIST_INT f: [1., 2, inf] } } }
    output_desc { name: "y" dtype: DT_FLOAT16 shape { dim: [2, -1] } layout: "NC1HWC0" size: 64 }
    id: 0
  }
  op < name: "call" type: "PartitionedCall" input: "x:0" input: "x:-1" subgraph_name: "sub" id: 1 # comment
    unknown { a: 1; b { c: "d" "e" } }  >
  attr { key: "_session_graph_id" value { s: "0_1" } }
}
graph { name: "sub" }
"""


def text_graphs(folder: Path) -> list[bytes]:
    """Graphs as GE writes them, and with all else the text format knows."""
    del folder
    return [_network().encode(), _GRAPH.encode()]


def _network() -> str:
    desc = TensorDesc(
        dtype="float16", layout="NC1HWC0", shape=(1, 1, 3, 3, 16), origin_layout="NHWC", origin_shape=(1, 3, 3, 8),
        dump_origin_name="conv", dump_origin_index=0, dump_origin_layout="NHWC",
    )  # fmt: skip
    ops = [
        graph_op("data", "Data", kernel=False),
        graph_op(
            "conv", "Conv2D", ["data:0", "data:1"], input_descs=[desc, desc], output_descs=[desc],
            original_names=("conv", "bias"), pass_names=("AFusionPass",), id=7, is_multiop=True,
            attrs={"text": "a\n\x7f", "yes": True, "pad": 0.5, "count": -3},
        ),
    ]  # fmt: skip
    return text_graph(ops, attrs={"_session_graph_id": "0_1"})


def oms(folder: Path) -> list[bytes]:
    """Offline models of one and of two graphs, with both kinds of tables."""
    del folder
    models = _models()
    return [om_bytes(models[0]), om_bytes(models[0], is_wide=False), om_bytes(*models)]


def _models() -> list[bytes]:
    sound = _GRAPH.replace('unknown { a: 1; b { c: "d" "e" } }', "")
    return [model_def(text).SerializeToString() for text in (_network(), sound)]


def om_messages(folder: Path) -> list[MessageSeed]:
    """The models in them, with header and tables right again."""
    del folder
    found = [MessageSeed(message, om_bytes) for model in _models() if (message := parsed(model))]
    assert len(found) == 2
    return found


def json_graphs(folder: Path) -> list[bytes]:
    """The JSON that atc makes of a graph."""
    path = folder / "seed.txt"
    found = []
    for text in text_graphs(folder):
        path.write_bytes(text.replace(b", inf", b""))  # which JSON cannot hold
        found.append("".join(export_graph(str(path))[0]).encode())
    return found


def graph_columns(folder: Path) -> list[bytes]:
    """What cache files hold of graphs: with and without the ops."""
    data = _network().encode()
    path = folder / "cached.txt"
    path.write_bytes(data)
    signature = (len(data), 1, 1, 1, 1)
    file = load_graph_bytes(data, str(path))
    whole = cache._columns_of_graph(data, str(path), signature)
    return [whole, cache._Columns().of_skim(cache._skim_of(file, signature))]


# ---- overflow, fusion, switches


def statuses(folder: Path) -> list[bytes]:
    """Dumps of the overflow status in both layouts."""
    return [opdebug.write_status(folder, payload).read_bytes() for payload in _payloads()]


def _payloads() -> list[bytes]:
    return [
        opdebug.old_payload(core=0x20, l2=1, dha=2),
        opdebug.new_payload(opdebug.AIC, opdebug.core_fields()),
        opdebug.new_payload(opdebug.AIV, opdebug.core_fields(thread=3, context=2), version=1),
        opdebug.new_payload(opdebug.AICPU, [1, 2, 3, 4, 5, 6]),
        opdebug.new_payload(opdebug.SDMA, [1, 2, 3, 4, 5, 6, 7]),
    ]


def status_texts(folder: Path) -> list[bytes]:
    """The JSON that such a status is decoded to."""
    del folder
    return [document_text(decode_status(payload)[0]).encode() for payload in _payloads()]


def _counts(*effects: int) -> dict[str, str]:
    return {"effect_times": str(effects[0]), "match_times": str(effects[-1])}


def fusion_results(folder: Path) -> list[bytes]:
    """The report of the fusion passes, of one session and of several."""
    del folder
    one = {
        "session_and_graph_id": "0_1",
        "graph_fusion": {"AFusionPass": _counts(1, 2), "BPass": _counts(0)},
        "ub_fusion": {"TbeConvPass": {**_counts(3), "repository_hit_times": "0"}},
    }
    return [
        json.dumps(document, indent=4).encode() for document in (one, [one, {**one, "session_and_graph_id": "0_2"}])
    ]


def passports(folder: Path) -> list[bytes]:
    """What two runs were, with and without hashes."""
    del folder
    one = {"name": "fc/kernel", "type": "float32", "shape": [3, 2], "sha256": "0123456789abcdef" * 4}
    document: dict[str, Any] = {
        "format": "precision_tool passport", "version": 1, "side": "npu", "framework": "tensorflow",
        "written": "2026-03-02T09:30:00Z", "versions": {"tensorflow": "1.15.0", "python": "3.7.5"},
        "environment": {"OMP_NUM_THREADS": "8"}, "seeds": {"helper": 0, "graph": None},
        "switches": {"precision_mode": "allow_mix_precision"},
        "optimizers": [{"type": "ApplyAdam", "hyperparameters": {"lr": 0.5, "beta1": "computed"}, "variables": 2}],
        "variables": [one, {**one, "name": "fc/bias"}], "batch": [{**one, "name": "x:0"}], "left_out": {"y:0": "why"},
    }  # fmt: skip
    bare = {**document, "side": "benchmark", "variables": [], "batch": [], "optimizers": []}
    return [json.dumps(each, indent=1).encode() for each in (document, bare)]


def switch_files(folder: Path) -> list[bytes]:
    """Switch files of both forms, as they are shipped and as users leave them."""
    del folder
    sections = {"GraphFusion": {"ALL": "off", "AFusionPass": "on"}, "UBFusion": {"ALL": "on", "TbeConvPass": "off"}}
    text = json.dumps({"Switch": sections, "Other": [1, {"a": None}]}, indent=2)
    return [text.encode(), text.replace('"off",', '"off", // why').encode(), b"APass:on\nBPass:off\n# c\n"]


# ---- results and small files


def mappings(folder: Path) -> list[bytes]:
    """Real names of files that are bare numbers."""
    del folder
    return [b'1,Add.op.1.2.1772443800000000\n2.csv,"Mul.a,b.3.4.1772443800000001.csv"\n3,odd\n']


def tensor_tables(folder: Path) -> list[bytes]:
    """Tables of a benchmark's tensors, with files of each format and what should be left out."""
    np.save(folder / "x.npy", _values(3))
    (folder / "x.safetensors").write_bytes(safetensors_bytes({"a": _values(2), "b": _values(2)}))
    return [
        b"op,output,file,key\nnet/a,0,x.npy,\nnet/b,1,x.safetensors,a\nc,,x.safetensors,\nd,0,../x,\n",
        b'file,op\n"x.npy","a,b"\nnowhere.pt,c\n',
    ]


def results(folder: Path) -> list[bytes]:
    """Comparison results with the columns of today, of the vendor and of old releases."""
    del folder
    head = "Index,OpType,NPUDump,DataType,Address,GroundTruth,DataType,TensorIndex,Shape,OverFlow,"
    line = '1,Add,op,float16,17,a;b,float32,op:output:0,"[2,2]",NO,'
    numbers = '0.99,0.5,0.01,nan,0.2,"(0.250;0.100),(0.250;0.100)",0.1,inf,0.3,NaN'
    columns = ",".join(METRIC_COLUMNS)
    cells = ",".join(numbers.split(",")[: len(METRIC_COLUMNS) + 1])
    texts = [
        f"{head}{columns},CompareFailReason\n{line}{cells},\n2,Mul,x,NaN,,y,,x:input:0,NaN,,{cells},why\n",
        "LeftOp,RightOp,TensorIndex,CosineSimilarity,MaxAbsoluteError\nop,op,op:output:0,1.0,0\nb,*,b:output:1,NaN,NaN\n",
        "NPUDumpPath,GroundTruthPath,CosineSimilarity\n/Add/1/output/x,/Add/1/output/x,0.5\n",
        'Index,NPUDump,TensorIndex,CosineSimilarity,Status,MaxErrorIndex,NPUMax\n1,\'=op,op:output:0,0.9,compared,"(0)",7\n',
    ]
    return [text.encode() for text in texts]


def noises(folder: Path) -> list[bytes]:
    """A noise floor."""
    path = folder / "noise_floor_1.csv"
    rows = [Noise(op_name="a/b", slot="output:0", distance=0.25, max_absolute_error=3.0, cosine=0.97)]
    write_noise(str(path), [*rows, Noise(op_name="c", slot="input:1", distance=0.0)])
    return [path.read_bytes()]


def acl_jsons(folder: Path) -> list[bytes]:
    """The acl.json of single ops, with a neighbour."""
    del folder
    return [json.dumps(acl_config(), indent=4).encode(), json.dumps({**acl_config("/x"), "profiler": {}}).encode()]


def settings(folder: Path) -> list[bytes]:
    """A user's settings."""
    del folder
    text = (
        '"""Mine."""\nDATA = "x"\nTHRESHOLD = 0.98\nLIMIT = 3\nATOL = 1e-3\nPRINT_COUNT = 20\nWORKERS = 0\n'
        'WIDTH = 120\nTHEME = "dark"\nLOG_LEVEL = "warning"\nTF_DUMP_STEP = "0|5|10-20"\nWORK = None\n'
        'ENGINE = "native"\nPYTHON = ""\n'
        "TOOLKIT_SECONDS = 3600.0  # s\n"
    )
    return [text.encode()]


def bisections(folder: Path) -> list[bytes]:
    """The state of a bisection that was killed, and of one that was not."""
    tries = [{"changes": ["APass"], "succeeded": True, "code": 0, "seconds": 0.1, "log": "try_001.log"}]
    state = {
        "version": 4, "check": "true", "names": ["APass", "BPass"], "file": str(folder / "switch.cfg"),
        "running": True,
        "base": "{}", "original": "old", "written": ["new", "old"], "tries": tries,
    }  # fmt: skip
    return [json.dumps(one, indent=1).encode() for one in (state, {**state, "running": False, "original": None})]


def feeds(folder: Path) -> list[bytes]:
    """The manifest of a saved step."""
    del folder
    entries = [{"tensor": "x:0", "file": "x_0.npy"}, {"tensor": "y:0", "file": "y_0.npy"}]
    content = {"version": 1, "feeds": entries, "left_out": {"z:0": "why"}, "train_ops": ["train"]}
    return [json.dumps(content, indent=2).encode()]


def small_jsons(folder: Path) -> list[bytes]:
    """The tool's own small files: what a result is of, what the toolkit made, where it was found, cosines."""
    result = folder / "result_1.csv"
    write_source(str(result), ResultSource(npu="/a/dump", golden="/b", graph="/c"), str(folder))
    documents: list[Any] = [
        {"texts": {"result.csv": "a,b\n"}, "notes": ["one"]}, {"roots": ["/x"], "found": {"atc": "/x/atc"}},
        {"a": 0.5, "b": math.nan}, {"files": {"npu/debug_0": 3}}, {"graph": [{"op": []}]},
    ]  # fmt: skip
    return [result.with_suffix(".json").read_bytes(), *(json.dumps(document).encode() for document in documents)]


# ---- names

NAMES = (
    "Add.op.1.2.1772443800000000", "Conv2D.a_b_c.3.1772443800000000.csv", "MatMul.x.1.2.1772443800000000.1.2.3.0", "12",
    "Opdebug.Node_OpDebug.77.9.1772443800000500", "op.0.1772443800000000.npy", "conv_1.1772443800000000.npy",
    "mapping.csv",
    "ge_proto_00000005_graph_1_Build.txt", "ge_onnx_00000005_graph_1_Build.pbtxt", "a.b.c.npy", "run.h5", "model",
    "dump_data",
    "_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0", "op_0_DebugIdentity_1772443800000000", "debug_0",
    "dump",
)  # fmt: skip
FOLDERS = (
    "20260302093000",
    "0",
    "1",
    "²",
    "model_1",
    "debug_0",
    "npu",
    "dump",
    "-1",
    "00",
    "9" * 30,
    "a b",
    "٣",
    ".h",
    "x" * 200,
)


def names(folder: Path) -> list[bytes]:
    """File names, one by one."""
    del folder
    return [name.encode() for name in (*NAMES, *FOLDERS)]


def trees(folder: Path) -> list[bytes]:
    """Lists of paths, which become files."""
    del folder
    leaf = "npu/debug_0/dump/20260302093000/0/model_1/1/0"
    return [
        "\n".join(f"{leaf}/{name}" for name in NAMES[:5]).encode(),
        "\n".join(f"tf/dump/{name}" for name in NAMES).encode(),
        "\n".join(
            f"{one}/{other}/{name}" for one, other, name in zip(FOLDERS, FOLDERS[1:], NAMES, strict=False)
        ).encode(),
        f"{leaf}/mapping.csv\n{leaf}/1\n{leaf}/2.csv\ntf/run_1/{NAMES[14]}/{NAMES[15]}".encode(),
    ]


def words(folder: Path) -> list[bytes]:
    """What users type: ranges, ids, metrics, slots, steps, patterns, actions."""
    del folder
    texts = (
        "1,10,2",
        "1,2,3",
        "all",
        "CosineSimilarity,MaxAbsoluteError",
        "x.npy:output:0",
        "0|5|10-20",
        "a*[b]?",
        "dump",
    )
    return [text.encode() for text in texts]
