"""TensorFlow's graphs, written by google.protobuf from the field numbers of TensorFlow's .proto files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

_F = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _F.TYPE_STRING, "bytes": _F.TYPE_BYTES, "int64": _F.TYPE_INT64, "int32": _F.TYPE_INT32,
    "uint32": _F.TYPE_UINT32, "uint64": _F.TYPE_UINT64, "bool": _F.TYPE_BOOL, "float": _F.TYPE_FLOAT,
    "double": _F.TYPE_DOUBLE,
}  # fmt: skip
#: message → lines "name number type", `*` before a repeated type.
_MESSAGES = {
    "SavedModel": "saved_model_schema_version 1 int64/meta_graphs 2 *MetaGraphDef",
    "MetaGraphDef": "meta_info_def 1 MetaInfoDef/graph_def 2 GraphDef",
    "MetaInfoDef": "meta_graph_version 1 string/stripped_op_list 2 OpList/tags 4 *string/tensorflow_version 5 string",
    "OpList": "op 1 *OpDef",
    "OpDef": "name 1 string",
    "GraphDef": "node 1 *NodeDef/library 2 Library/version 3 int32/versions 4 Versions",
    "Library": "function 1 *FunctionDef",
    "FunctionDef": "signature 1 OpDef/node_def 3 *NodeDef",
    "Versions": "producer 1 int32",
    "NodeDef": "name 1 string/op 2 string/input 3 *string/device 4 string/attr 5 *Entry",
    "Entry": "key 1 string/value 2 AttrValue",
    "AttrValue": "list 1 ListValue/s 2 bytes/i 3 int64/f 4 float/b 5 bool/type 6 Type/shape 7 Shape/tensor 8 Tensor/"
    "placeholder 9 string/func 10 Func",
    "Func": "name 1 string/attr 2 *Entry",
    "ListValue": "s 2 *bytes/i 3 *int64/f 4 *float/b 5 *bool/type 6 *Type/shape 7 *Shape/tensor 8 *Tensor/func 9 *Func",
    "Shape": "dim 2 *Dim/unknown_rank 3 bool",
    "Dim": "size 1 int64/name 2 string",
    "Tensor": "dtype 1 Type/tensor_shape 2 Shape/version_number 3 int32/tensor_content 4 bytes/float_val 5 *float/"
    "double_val 6 *double/int_val 7 *int32/string_val 8 *bytes/scomplex_val 9 *float/int64_val 10 *int64/"
    "bool_val 11 *bool/dcomplex_val 12 *double/half_val 13 *int32/uint32_val 16 *uint32/uint64_val 17 *uint64",
}  # fmt: skip
_DATA_TYPES = (
    "DT_INVALID", "DT_FLOAT", "DT_DOUBLE", "DT_INT32", "DT_UINT8", "DT_INT16", "DT_INT8", "DT_STRING", "DT_COMPLEX64",
    "DT_INT64", "DT_BOOL", "DT_QINT8", "DT_QUINT8", "DT_QINT32", "DT_BFLOAT16", "DT_QINT16", "DT_QUINT16", "DT_UINT16",
    "DT_COMPLEX128", "DT_HALF", "DT_RESOURCE", "DT_VARIANT", "DT_UINT32", "DT_UINT64",
)  # fmt: skip


@cache
def message_class(name: str) -> Any:
    """The class of a message."""
    file = descriptor_pb2.FileDescriptorProto(name="tf_graphs.proto", package="tf_graphs", syntax="proto2")
    for message_name, lines in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for line in lines.split("/"):
            field_name, number, kind = line.split()
            field = message.field.add(name=field_name, number=int(number))
            field.label = _F.LABEL_REPEATED if kind.startswith("*") else _F.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            if kind == "Type":
                field.type, field.type_name = _F.TYPE_ENUM, ".tf_graphs.Type"
            elif kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _F.TYPE_MESSAGE, f".tf_graphs.{kind}"
            if field.label == _F.LABEL_REPEATED and field.type not in (_F.TYPE_MESSAGE, _F.TYPE_STRING, _F.TYPE_BYTES):
                field.options.packed = True
    words = file.enum_type.add(name="Type")
    for code, word in enumerate(_DATA_TYPES):
        words.value.add(name=word, number=code)
        if code:
            words.value.add(name=f"{word}_REF", number=code + 100)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tf_graphs.{name}"))


def parsed(name: str, text: str) -> Any:
    """A message that its text describes."""
    return text_format.Parse(text, message_class(name)())


def node(name: str, op: str, inputs: Sequence[str] = (), attrs: Mapping[str, str] | None = None) -> str:
    """The text of a NodeDef; attributes are texts of AttrValues."""
    lines = [f'name: "{name}" op: "{op}"', *(f'input: "{each}"' for each in inputs)]
    lines += [f'attr {{ key: "{key}" value {{ {value} }} }}' for key, value in (attrs or {}).items()]
    return f"node {{ {' '.join(lines)} }}\n"
