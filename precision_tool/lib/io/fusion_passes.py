"""What is known of GE's fusion passes by their names: which it never switches off, and which ALL does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from precision_tool.lib.io.files import open_file
from precision_tool.lib.messages import Message
from precision_tool.lib.messages.errors import FormatError, shown, shown_name

GRAPH, UB = "GraphFusion", "UBFusion"
SECTIONS = (GRAPH, UB)

#: GE runs these whatever the switch file says (FORMATS.md §7), by its own list or as they are registered: a fault in
#: one of them cannot be avoided by a switch, and a run with fusion off still contains them.
ALWAYS_ON = frozenset({
    "AABiasaddConvFusion", "ADeformableConv2dPass", "ADepthwiseFusionPass", "ALSTMFusionPass",
    "AReduceMeanFusionPass", "AReduceSumFusionPass", "ARefreshCubeC0FusionPass", "AddNFusionPass",
    "ApplyAddOutputPass", "ArgMaxWithFusionPass",
    "AvgPool3DFusionPass", "AvgPool3DGradFusionPass", "AvgPoolGradFusionPass", "AvgPoolQuantProcessFusionPass",
    "BatchMatmulV2QuantProcessFusionPass", "BatchNormBnInferFusionPass", "BatchNormGradBnInferGradFusion",
    "BatchNormGradInfGradFusion", "COPYPass", "CommonLSTMFusionPass", "ConstToAttrGatherV2Fusion",
    "ConstToAttrPass", "ConstToAttrReduceSumFusion", "ConstToAttrResizeNearestNeighborGradFusion",
    "Conv2DQuantProcessFusionPass", "Conv2DTDQuantProcessFusionPass", "DWConv2DQuantProcessFusionPass",
    "DeConvQuantProcessFusionPass", "DeformableOffsetsFusionPass", "DeleteNoConstFolding", "DepthwiseDfFusionPass",
    "DepthwiseDwMulFusionPass", "DepthwiseFusionPass", "DepthwiseInsertTransDataFusionPass",
    "DepthwiseToConv2dFusionPass", "DreluFusionPass", "DynamicGRUV2GradFusionPass", "DynamicRNNFusionPass",
    "DynamicRNNGradAFusionPass", "DynamicRNNGradAlignFusionPass", "DynamicRNNGradDAlignFusionPass",
    "DynamicRNNGradDFusionPass", "DynamicRNNGradFusionPass", "DynamicRNNInsertTransposePass",
    "DynamicRNNSeqFusionPass", "EinsumPass", "FCQuantProcessFusionPass", "FusedBatchNormBertFusionPass",
    "FusedBatchNormGradFusionPass", "FusedBatchnormFusionPass", "Globalavgpoolpass",
    "GroupConv2DQuantProcessFusionPass", "HostBNFusionPass", "MapIndexFusionPass", "MatmulV2QuantProcessFusionPass",
    "MaxPoolWithArgmaxFusionPass", "NormalizeFusionPass", "PReluGradFusionPass", "PackFusionPass",
    "PassThroughFusionPass", "PassThroughSecondFusionPass", "PermuteFusionPass", "PoolingQuantProcessFusionPass",
    "PriorBoxPass", "ProposalFusionPass", "RNNFusionPass", "SPPPass", "SingleBatchNormFusion",
    "SoftmaxGradExtFusion", "SpatialTransformerDPass", "TbeAntiquantMaxpoolingFusionPass",
    "TbeConvCommonRules0FusionPass", "TbeConvCommonRules2FusionPass", "TbeConvDequantS16FusionPass",
    "TbeConvRequantFusionPass", "TfMergeConv2DBackpropInputFusionPass", "TfMergeSubFusionPass",
    "TfTagNoConstFoldingFusionPass", "TransdataCastFusionPass", "TransposedUpdateFusionPass", "UnpackFusionPass",
    "V100NotRequantFusionPass", "V200NotRequantFusionPass", "YoloPass", "YoloV2DetectionOutputPass",
    "YoloV3DetectionOutputV2Pass", "ZConcatDFusionPass", "ZConfusionSoftmaxGradFusionPass", "ZSplitVDFusionPass",
    "ZSplitVFusionPass", "clip_by_norm_nodivsquaresum", "sedBatchNormGradFusionPass",
})  # fmt: skip

#: Passes that GE's own file (its built-in fusion_config.json, of the 910B) switches on by name, and their sections. GE
#: adds that file to the user's, and a name counts more than ALL: these stay on unless the user's file names them off.
ON_BY_NAME = {
    "FusedInferAttentionScoreQuantFusionPass": GRAPH,
    "GridSampler3DFusionPass": GRAPH,
    "IncreFlashAttentionQuantFusionPass": GRAPH,
    "LayerNormGradV3FusionPass": GRAPH,
    "PromptFlashAttentionQuantFusionPass": GRAPH,
    "TbeMatmulFixPipeFusionPass": UB,
}

#: Why asking for one of them is refused.
ALWAYS_ON_REASON = Message("note.io.always_on")


def is_switchable(name: str) -> bool:
    """Whether a switch file can turn the pass off."""
    return name not in ALWAYS_ON


# --- `fusion_result.json`: how often each fusion pass matched and took effect in each graph (FORMATS.md §7) ---


_KINDS = {"graph_fusion": GRAPH, "ub_fusion": UB}
_MEMBER = re.compile(r"session_and_graph_id_(\w+)")
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCount:
    """How often a pass matched and took effect. `section` is that of the switch file."""

    name: str
    section: str
    matched: int
    effective: int
    repository_hits: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPasses:
    """The passes of one graph; `graph` is `{session}_{graph}`, the graph's id alone, or empty where nothing tells."""

    path: str
    graph: str
    passes: tuple[PassCount, ...]


def read_fusion_result(path: str) -> tuple[GraphPasses, ...]:
    """The graphs of a file. FormatError says where it is damaged."""
    with open_file(path) as file:
        if file.size > _MAX_BYTES:
            raise FormatError.of(path, "io.fusion_result.too_large", size=file.size)
        content = file.read_at(0, file.size)
    return parse_fusion_result(content.decode("utf-8-sig", errors="replace"), path)


def parse_fusion_result(text: str, path: str = "fusion_result.json") -> tuple[GraphPasses, ...]:
    """The graphs of a text in any of the four shapes."""
    graphs = [record for document in _documents(text, path) for record in _records(document, path)]
    if not graphs:
        raise FormatError.of(path, "io.fusion_result.no_passes")
    return tuple(graphs)


def _documents(text: str, path: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise FormatError.of(path, "io.fusion_result.not_json", line=error.lineno, reason=error.msg) from error
        except (RecursionError, ValueError) as error:  # too deep, or a number with thousands of digits
            raise FormatError.of(path, "io.fusion_result.unreadable", reason=str(error)[:80]) from error
        yield document
        at = _skip(text, at)


def _skip(text: str, at: int) -> int:
    """Past spaces and the commas that some releases leave between objects."""
    while at < len(text) and (text[at].isspace() or text[at] == ","):
        at += 1
    return at


def _records(document: Any, path: str, graph: str = "") -> Iterator[GraphPasses]:
    if isinstance(document, list):
        for item in document:
            yield from _records(item, path, graph)
        return
    if not isinstance(document, dict):
        raise FormatError.of(path, "io.fusion_result.no_object", name=shown(str(document)))
    if _KINDS.keys() & document.keys():
        passes = [count for kind in _KINDS for count in _passes(document.get(kind), kind, path)]
        yield GraphPasses(path=path, graph=_graph_of(document) or graph, passes=tuple(passes))
    for name, value in document.items():
        match = _MEMBER.fullmatch(name)
        if match is not None:
            yield from _records(value, path, match[1])


def _graph_of(document: dict[str, Any]) -> str:
    whole = document.get("session_and_graph_id")
    if whole not in (None, ""):
        return re.sub(r"^session_and_graph_id_", "", str(whole))
    session = next((document[key] for key in ("sessionId", "session_id") if key in document), None)
    graph = next((document[key] for key in ("graphId", "graph_id") if key in document), None)
    return "_".join(str(part) for part in (session, graph) if part is not None)


def _passes(members: Any, kind: str, path: str) -> Iterator[PassCount]:
    if members in (None, ""):
        return
    if not isinstance(members, dict):
        raise FormatError.of(path, "io.fusion_result.no_object", name=kind)
    for name, counts in members.items():
        if not isinstance(counts, dict):
            raise FormatError.of(path, "io.fusion_result.no_object", name=f"{kind}: {shown_name(name)}")
        figures = {
            key: _count(counts.get(key), path, f"{kind}: {shown_name(name)}: {key}")
            for key in ("match_times", "effect_times", "repository_hit_times")
        }
        yield PassCount(
            name=name,
            section=_KINDS[kind],
            matched=figures["match_times"] or 0,
            effective=figures["effect_times"] or 0,
            repository_hits=figures["repository_hit_times"],
        )


def _count(value: Any, path: str, where: str) -> int | None:
    if value is None:
        return None
    text = str(value).strip()
    if isinstance(value, bool) or re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise FormatError.of(path, "io.fusion_result.no_count", where=where, text=shown(text))
    return int(text)
