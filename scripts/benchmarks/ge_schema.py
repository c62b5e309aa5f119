"""GE's graph messages as protobuf classes, from the field numbers of FORMATS.md §4. Only the benchmark needs them."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _F.TYPE_STRING, "bytes": _F.TYPE_BYTES, "int64": _F.TYPE_INT64, "int32": _F.TYPE_INT32,
    "uint32": _F.TYPE_UINT32, "bool": _F.TYPE_BOOL, "float": _F.TYPE_FLOAT,
}  # fmt: skip

#: message → lines "name number type", `*` before a repeated type.
_MESSAGES = {
    "ModelDef": "name 1 string/version 2 uint32/custom_version 3 string/graph 7 *GraphDef/attr 11 *Entry",
    "Entry": "key 1 string/value 2 AttrDef",
    "GraphDef": "name 1 string/input 4 *string/output 5 *string/op 6 *OpDef/attr 11 *Entry",
    "OpDef": "name 1 string/type 2 string/input 5 *string/attr 10 *Entry/has_out_attr 20 bool/id 21 int64/"
    "stream_id 22 int64/input_name 23 *string/src_name 24 *string/src_index 25 *int64/dst_name 26 *string/"
    "dst_index 27 *int64/input_i 28 *int64/output_i 29 *int64/workspace 30 *int64/workspace_bytes 31 *int64/"
    "is_input_const 32 *bool/input_desc 33 *TensorDescriptor/output_desc 34 *TensorDescriptor/subgraph_name 35 *string",
    "ShapeDef": "dim 1 *int64",
    "TensorDescriptor": "name 1 string/dtype 2 string/shape 3 ShapeDef/layout 4 string/has_out_attr 9 bool/"
    "size 10 int64/weight_size 11 int64/reuse_input 12 bool/output_tensor 13 bool/device_type 14 string/"
    "input_tensor 15 bool/real_dim_cnt 16 int64/reuse_input_index 17 int64/data_offset 18 int64/"
    "cmps_size 19 int64/cmps_tab 20 string/"
    "cmps_tab_offset 21 int64/attr 5 *Entry",
    "ListValue": "s 2 *string/i 3 *int64/f 4 *float/b 5 *bool/bt 7 *bytes/td 8 *TensorDescriptor/val_type 20 string",
    "ListInt": "list_i 1 *int64",
    "ListListInt": "list_list_i 1 *ListInt",
    "AttrDef": "s 2 string/i 3 int64/f 4 float/b 5 bool/bt 6 bytes/list 1 ListValue/td 11 TensorDescriptor/"
    "list_list_int 14 ListListInt",
}  # fmt: skip


def model_def_class() -> Any:
    """The generated class of ModelDef. Enums are declared as text formats need them: as bare words."""
    file = descriptor_pb2.FileDescriptorProto(name="ge_bench.proto", package="ge_bench", syntax="proto2")
    for name, lines in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for line in lines.split("/"):
            field_name, number, kind = line.split()
            field = message.field.add(name=field_name, number=int(number))
            repeated, kind = kind.startswith("*"), kind.lstrip("*")
            field.label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            if (name, field_name) in (("TensorDescriptor", "dtype"), ("ListValue", "val_type")):
                field.type, field.type_name = _F.TYPE_ENUM, f".ge_bench.{field_name}_words"
            elif kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _F.TYPE_MESSAGE, f".ge_bench.{kind}"
    _add_enum(file, "dtype_words", _DATA_TYPES)
    _add_enum(file, "val_type_words", _LIST_TYPES)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ge_bench.ModelDef"))


#: Enumerations a text file spells as bare words.
_DATA_TYPES = (
    "DT_UNDEFINED", "DT_FLOAT", "DT_FLOAT16", "DT_INT8", "DT_UINT8", "DT_INT16", "DT_UINT16", "DT_INT32", "DT_INT64",
    "DT_UINT32", "DT_UINT64", "DT_BOOL", "DT_DOUBLE", "DT_STRING", "DT_RESOURCE", "DT_BF16",
)  # fmt: skip
_LIST_TYPES = (
    "VT_LIST_NONE", "VT_LIST_STRING", "VT_LIST_INT", "VT_LIST_FLOAT", "VT_LIST_BOOL", "VT_LIST_BYTES",
    "VT_LIST_TENSOR_DESC", "VT_LIST_TENSOR", "VT_LIST_GRAPH", "VT_LIST_NAMED_ATTRS", "VT_LIST_DATA_TYPE",
)  # fmt: skip


def _add_enum(file: descriptor_pb2.FileDescriptorProto, name: str, names: tuple[str, ...]) -> None:
    enum = file.enum_type.add(name=name)
    for number, value in enumerate(names):
        enum.value.add(name=value, number=number)
