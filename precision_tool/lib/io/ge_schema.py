"""The messages of GE's graphs (`ge_ir.proto`): names, numbers and kinds of their fields, as data (FORMATS.md §4)."""

from __future__ import annotations

from dataclasses import dataclass

from precision_tool.lib.io.data_types import BY_CODE

#: Kinds of fields that are numbers on the wire, and the one that is a message's name.
INTEGERS = ("int", "uint", "bool", "dtype", "val_type")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message. `kind` is a scalar's, an enum's or the name of a message.

    Fields of a oneof are there even when they are zero; others are not.
    """

    name: str
    number: int
    kind: str
    is_repeated: bool
    is_oneof: bool

    @property
    def is_message(self) -> bool:
        """True if its values are blocks."""
        return self.kind in MESSAGES


#: message → fields "name number kind", `*` before a repeated kind, `?` before one of a oneof.
_LINES = {
    "ModelDef": "name 1 string/version 2 uint/custom_version 3 string/graph 7 *GraphDef/attr 11 *AttrEntry",
    "GraphDef": "name 1 string/input 4 *string/output 5 *string/op 6 *OpDef/attr 11 *AttrEntry",
    "AttrEntry": "key 1 string/value 2 AttrDef",
    "OpDef": "name 1 string/type 2 string/input 5 *string/attr 10 *AttrEntry/has_out_attr 20 bool/id 21 int/"
    "stream_id 22 int/input_name 23 *string/src_name 24 *string/src_index 25 *int/dst_name 26 *string/"
    "dst_index 27 *int/input_i 28 *int/output_i 29 *int/workspace 30 *int/workspace_bytes 31 *int/"
    "is_input_const 32 *bool/input_desc 33 *TensorDescriptor/output_desc 34 *TensorDescriptor/"
    "subgraph_name 35 *string",
    "ShapeDef": "dim 1 *int",
    "TensorDescriptor": "name 1 string/dtype 2 dtype/shape 3 ShapeDef/layout 4 string/attr 5 *AttrEntry/"
    "has_out_attr 9 bool/size 10 int/weight_size 11 int/reuse_input 12 bool/output_tensor 13 bool/"
    "device_type 14 string/input_tensor 15 bool/real_dim_cnt 16 int/reuse_input_index 17 int/data_offset 18 int/"
    "cmps_size 19 int/cmps_tab 20 string/cmps_tab_offset 21 int",
    "TensorDef": "desc 1 TensorDescriptor/data 2 bytes",
    "NamedAttrs": "name 1 string/attr 2 *AttrEntry",
    "ListInt": "list_i 1 *int",
    "ListListInt": "list_list_i 1 *ListInt",
    "ListFloat": "list_f 1 *float",
    "ListListFloat": "list_list_f 1 *ListFloat",
    "ListValue": "s 2 *bytes/i 3 *int/f 4 *float/b 5 *bool/bt 7 *bytes/td 8 *TensorDescriptor/t 9 *TensorDef/"
    "g 10 *GraphDef/na 11 *NamedAttrs/dt 12 *int/val_type 20 val_type",
    "AttrDef": "list 1 ?ListValue/s 2 ?bytes/i 3 ?int/f 4 ?float/b 5 ?bool/bt 6 ?bytes/func 10 ?NamedAttrs/"
    "td 11 ?TensorDescriptor/t 12 ?TensorDef/g 13 ?GraphDef/list_list_int 14 ?ListListInt/dt 15 ?int/"
    "list_list_float 16 ?ListListFloat",
}


def _fields(lines: str) -> dict[str, Field]:
    fields = {}
    for line in lines.split("/"):
        name, number, kind = line.split()
        fields[name] = Field(name, int(number), kind.lstrip("*?"), kind[0] == "*", kind[0] == "?")
    return fields


#: message → its fields by name.
MESSAGES: dict[str, dict[str, Field]] = {name: _fields(lines) for name, lines in _LINES.items()}
#: message → its fields by number.
BY_NUMBER: dict[str, dict[int, Field]] = {
    name: {field.number: field for field in fields.values()} for name, fields in MESSAGES.items()
}
_LIST_TYPES = (
    "VT_LIST_NONE", "VT_LIST_STRING", "VT_LIST_INT", "VT_LIST_FLOAT", "VT_LIST_BOOL", "VT_LIST_BYTES",
    "VT_LIST_TENSOR_DESC", "VT_LIST_TENSOR", "VT_LIST_GRAPH", "VT_LIST_NAMED_ATTRS", "VT_LIST_DATA_TYPE",
)  # fmt: skip
#: enum → the name of each of its values.
ENUMS: dict[str, dict[int, str]] = {
    "dtype": {code: row.ge_name for code, row in BY_CODE.items()},
    "val_type": dict(enumerate(_LIST_TYPES)),
}
