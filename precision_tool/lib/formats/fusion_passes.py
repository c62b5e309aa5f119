"""What is known of GE's fusion passes by their names: which it never switches off, and which ALL does not."""

from __future__ import annotations

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
ALWAYS_ON_REASON = "GE never switches it off, whatever the switch file says"


def is_switchable(name: str) -> bool:
    """Whether a switch file can turn the pass off."""
    return name not in ALWAYS_ON
