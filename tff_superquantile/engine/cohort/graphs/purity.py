"""What gives the same whenever it is computed, so that it may be kept from call to call.

Known to be pure is what has only ops of the list below, at every depth of the functions that it
calls. All else is computed anew in each call: ops that read files, draw or have a state, and ops
that nobody has looked at. tests/engine/test_purity.py has each op of the list in a data set that is
kept, and compares what is kept with TFF's runtime.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import os
import re
from typing import Any

import tensorflow as tf

# TensorFlow exports no class for the options of data sets as graphs have them.
from tensorflow.core.framework import dataset_options_pb2

from tff_superquantile.engine.cohort.graphs import ops

# TensorFlow marks these as stateful. Why they are pure:
REASONS: Mapping[str, str] = {
  "Assert": "it raises, and then nothing is kept, or does nothing",
  "CacheDatasetV2": "it keeps the elements of its input, and `files_of` asks where",
  "DatasetToSingleElement": "its state would be that of the data set",
  "ReduceDataset": "its state would be that of the data set, or of its function",
  **dict.fromkeys(
    ("RangeDataset", "TensorDataset", "TensorSliceDataset"), "it is not to become a constant"
  ),
  **dict.fromkeys(
    ("Case", "If", "StatefulPartitionedCall", "While"), "its state would be that of its functions"
  ),
  "_Retval": "it hands a result over",
}
OPS = frozenset(
  (
    *REASONS,
    *"""
    Abs Acos Acosh Add AddN AddV2 AdjustContrastv2 AdjustHue AdjustSaturation All Angle Any
    ApproximateEqual ArgMax ArgMin AsString Asin Asinh AssertCardinalityDataset Atan Atan2 Atanh
    AvgPool BatchDatasetV2 BatchMatMulV2 BatchToSpaceND BesselI0 Betainc BiasAdd BiasAddGrad Bitcast
    BitwiseAnd BitwiseOr BitwiseXor BroadcastArgs BroadcastTo Bucketize Cast Ceil Cholesky
    ClipByValue Complex ComplexAbs ConcatV2 ConcatenateDataset Conj Const Conv2D Cos Cosh
    CropAndResize Cross Cumprod Cumsum CumulativeLogsumexp DatasetCardinality DecodeBase64 DecodeCSV
    DecodeCompressed DecodeImage DecodeJpeg DecodePng DecodeRaw DenseBincount DepthToSpace
    DepthwiseConv2dNative DeserializeSparse Digamma DirectedInterleaveDataset DivNoNan
    DynamicPartition DynamicStitch EditDistance Einsum Elu EluGrad EncodeBase64 EncodeJpeg EncodePng
    EnsureShape Equal Erf Erfc Erfinv EuclideanNorm Exp ExpandDims Expm1 ExtractImagePatches FFT
    FakeQuantWithMinMaxArgs Fill FilterDataset FinalizeDataset FlatMapDataset Floor FloorDiv
    FloorMod GatherNd GatherV2 Greater GreaterEqual GroupByWindowDataset HSVToRGB
    HistogramFixedWidth IFFT IRFFT Identity IdentityN Igamma IgnoreErrorsDataset Imag InTopKV2
    InterleaveDataset Invert InvertPermutation IsFinite IsInf IsNan L2Loss LeakyRelu LeakyReluGrad
    LeftShift Less LessEqual Lgamma Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr LowerBound
    MapDataset MatMul MatrixBandPart MatrixDeterminant MatrixDiagPartV3 MatrixDiagV3 MatrixInverse
    MatrixSetDiagV3 MatrixSolve MatrixTriangularSolve Max MaxPool MaxPoolGrad Maximum Mean Min
    Minimum MirrorPad Mul MulNoNan Ndtri Neg NextAfter NoOp NotEqual OneHot OptionsDataset Pack Pad
    PadV2 PaddedBatchDatasetV2 ParallelBatchDataset ParallelInterleaveDatasetV4 ParallelMapDatasetV2
    ParseExampleV2 ParseSequenceExampleV2 ParseTensor PartitionedCall PlaceholderWithDefault
    PopulationCount Pow PrefetchDataset Prod Qr RFFT RGBToHSV RaggedGather RaggedRange
    RaggedTensorFromVariant RaggedTensorToTensor RandomIndexShuffle Range Real RealDiv
    RebatchDatasetV2 Reciprocal ReduceJoin RegexFullMatch RegexReplace Relu Relu6 ReluGrad
    RepeatDataset Reshape ResizeArea ResizeBicubic ResizeBilinear ResizeBilinearGrad
    ResizeNearestNeighbor ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad
    ScaleAndTranslate ScanDataset ScatterNd SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum
    Select SelectV2 SelfAdjointEigV2 Selu SerializeTensor Shape ShardDataset Sigmoid SigmoidGrad
    Sign Sin Sinh Size SkipDataset Slice SobolSample Softmax SoftmaxCrossEntropyWithLogits Softplus
    Softsign SpaceToBatchND SpaceToDepth SparseAdd SparseConcat SparseFillEmptyRows SparseReduceSum
    SparseReorder SparseReshape SparseSegmentMean SparseSegmentSum SparseSlice SparseSoftmax
    SparseSoftmaxCrossEntropyWithLogits SparseTensorDenseMatMul SparseToDense Split SplitV Sqrt
    SqrtGrad Square SquaredDifference Squeeze StatelessCase StatelessIf StatelessMultinomial
    StatelessParameterizedTruncatedNormal StatelessRandomBinomial StatelessRandomGammaV3
    StatelessRandomGetKeyCounter StatelessRandomNormalV2 StatelessRandomPoisson
    StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformIntV2
    StatelessRandomUniformV2 StatelessShuffle StatelessTruncatedNormalV2 StatelessWhile
    StaticRegexFullMatch StaticRegexReplace StopGradient StridedSlice StridedSliceGrad StringFormat
    StringJoin StringLength StringLower StringNGrams StringSplit StringSplitV2 StringStrip
    StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper
    Sub Substr Sum Svd TakeDataset TakeWhileDataset Tan Tanh TanhGrad TensorListFromTensor
    TensorListGetItem TensorListReserve TensorListSetItem TensorListStack TensorScatterAdd
    TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate Tile TopKV2 Transpose
    TruncateDiv TruncateMod UnbatchDataset UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode
    UnicodeScript UnicodeTranscode Unique UniqueDataset UniqueWithCounts Unpack UnravelIndex
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where
    WindowDataset Xdivy Xlog1py Xlogy ZerosLike Zeta ZipDataset
    """.split(),
  )
)
# What TFF's own SQLite files are asked; other queries may draw, or read the clock.
_QUERY = re.compile(
  rb"SELECT serialized_example_proto FROM examples WHERE client_id = '[^']*'"
  rb"( and split_name ='[^']*')?"
)
_SQLITE, _SQLITES_JOURNALS = b"SQLite format 3\0", slice(18, 20)

# What changes nothing, though it draws or reads files and gives others each time. A seed of an op's
# own says that the op goes on where it was, and is not among them (`has_no_effect`).
_DRAWS = frozenset(
  "DummySeedGenerator Multinomial RandomGamma RandomPoissonV2 RandomShuffle RandomStandardNormal"
  " RandomUniform RandomUniformInt TruncatedNormal".split()
)
_READS = frozenset(
  "FixedLengthRecordDatasetV2 ReadFile ShuffleAndRepeatDatasetV2 ShuffleDatasetV3 SqlDataset"
  " ShuffleAndRepeatDataset ShuffleDataset TFRecordDatasetV2 TextLineDataset".split()
)

Nodes = Mapping[str, tf.compat.v1.NodeDef]


def is_pure(node: tf.compat.v1.NodeDef, functions: Sequence[Any] = ()) -> bool:
  """Tells whether an op, which calls these FunctionDefs, is known to be pure.

  A data set is what its inputs are: they, and resources among them, are for the caller to look at.
  """
  names = {function.signature.name for function in functions}
  inner = (each for function in functions for each in function.node_def)
  return _is_known(node, names) and all(
    _is_known(each, names) and not is_handle(each) for each in inner
  )


def _is_known(node: tf.compat.v1.NodeDef, functions: Collection[str]) -> bool:
  # What several threads compute may come in any order, if the user allows it.
  if node.op == "OptionsDataset":
    options = dataset_options_pb2.Options.FromString(node.attr["serialized_options"].s)
    if options.HasField("deterministic") and not options.deterministic:
      return False
  in_order = "deterministic" not in node.attr or node.attr["deterministic"].s != b"false"
  calls_known = all(name in functions for attr in node.attr.values() for name in ops.called(attr))
  return node.op in OPS and in_order and calls_known


def may_read(op: str) -> bool:
  """Tells whether an op may read what a text names, and TensorFlow does not know it.

  If it knows the text, it reads once for all calls.
  """
  return op not in OPS and not ops.is_stateful(op) and ops.reads_text(op)


def has_no_effect(node: tf.compat.v1.NodeDef) -> bool:
  """Tells whether an op, beside the functions that it calls, is known to change nothing."""
  if node.op in _DRAWS:
    return not any(node.attr[name].i for name in ("seed", "seed2"))
  return node.op in OPS or node.op in _READS


def is_handle(node: tf.compat.v1.NodeDef) -> bool:
  """Tells whether a node is a constant that stands for what lives outside of the graph."""
  return node.op == "Const" and node.attr["dtype"].type == tf.resource.as_datatype_enum


def files_of(
  part: Iterable[tf.compat.v1.NodeDef], nodes: Nodes, library: ops.Functions
) -> list[bytes] | None:
  """Returns the SQLite files that a part of a data set's graph reads; None if it may not be kept.

  It gives the same as long as `versions` of these files are the same.
  """
  paths = []
  for node in part:
    inputs = [nodes[ops.maker(name)] for name in node.input]
    if node.op == "SqlDataset":
      driver, path, query = (constant(each) for each in inputs)
      if driver != b"sqlite" or path is None or query is None or not _QUERY.fullmatch(query):
        return None
      paths.append(path)
    elif not is_pure(node, ops.functions_of(node, library)):
      return None
    elif node.op == "CacheDatasetV2":
      if constant(inputs[1]) != b"":
        return None  # A file, which may be there already.
    elif any(map(is_handle, inputs)):
      return None
  return paths


def constant(node: tf.compat.v1.NodeDef) -> Any:
  """Returns the value of a constant without dimensions, or None."""
  if node.op != "Const" or is_handle(node):
    return None
  array = tf.make_ndarray(node.attr["value"].tensor)
  return array[()] if array.ndim == 0 else None


def versions(paths: Sequence[bytes]) -> tuple[tuple[Any, ...], ...] | None:
  """Returns what changes when SQLite files do; None if that cannot be told of one of them."""
  found = []
  for path in paths:
    try:
      with open(path, "rb") as file:
        stat, header = os.fstat(file.fileno()), file.read(100)
    except OSError:
      return None
    # The header counts changes, unless a log beside the file has them.
    if not header.startswith(_SQLITE) or header[_SQLITES_JOURNALS] != b"\1\1":
      return None
    found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino, header))
  return tuple(found)
