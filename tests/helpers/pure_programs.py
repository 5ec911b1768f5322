"""Data sets that use each op which the engine takes for pure."""

from engine import test_ops
from engine import test_user_programs
import numpy as np
import tensorflow as tf

# Of an element's matrix x, number k, text t and image, and of constants s and n.
_OF_ELEMENTS = """
tf.strings.lower(t) | tf.strings.upper(t) | tf.strings.split([t], " ") | tf.strings.substr(t, 0, 3)
tf.strings.strip(t) | tf.strings.regex_replace(t, "[aeiou]", "-") | tf.strings.length(t)
tf.strings.regex_full_match(t, ".*b") | tf.strings.to_number(tf.strings.as_string(k))
tf.strings.reduce_join([t, t], separator="+") | tf.strings.bytes_split([t])
tf.strings.unicode_decode(t, "UTF-8") | tf.strings.unicode_split(t, "UTF-8")
tf.strings.to_hash_bucket_fast(t, 99) | tf.strings.to_hash_bucket_strong(t, 99, [1, 2])
tf.strings.to_hash_bucket(t, 9) | tf.strings.unicode_transcode(t, "UTF-8", "UTF-16-BE")
tf.strings.unicode_encode([k + 65], "UTF-8") | tf.strings.ngrams(tf.strings.split([t]), 2)
tf.strings.join([t, "x"], "-") | tf.strings.regex_replace(t, t, "x")
tf.strings.regex_full_match(t, t) | tf.strings.unicode_script(tf.strings.unicode_decode(t, "UTF-8"))
tf.strings.unicode_decode_with_offsets(t, "UTF-8")[1] | tf.compat.v1.string_split([t], "").values
tf.io.decode_csv(t + ",1", ["", 0])[0] | tf.io.encode_base64(t) | tf.io.decode_raw(t, tf.uint8)
tf.io.decode_base64(tf.io.encode_base64(t)) | tf.io.serialize_tensor(x)
tf.io.parse_tensor(tf.io.serialize_tensor(x), tf.float32) | tf.io.decode_compressed(t)
tf.io.parse_single_example(example, {"v": tf.io.FixedLenFeature([2], tf.float32)})["v"]
tf.io.parse_single_example(example, {"v": tf.io.VarLenFeature(tf.float32)})["v"]
tf.io.parse_example([example], {"v": tf.io.FixedLenFeature([2], tf.float32)})["v"]
tf.io.parse_example([example], {"v": tf.io.RaggedFeature(tf.float32)})["v"]
tf.sparse.to_dense(tf.io.parse_single_example(example, {"v": tf.io.VarLenFeature(tf.float32)})["v"])
tf.io.parse_sequence_example([example], {"v": tf.io.VarLenFeature(tf.float32)})[0]["v"]
tf.io.parse_single_sequence_example(example, {"v": tf.io.VarLenFeature(tf.float32)})[0]["v"]
tf.image.flip_left_right(image) | tf.image.resize(image, [3, 3]) | tf.image.rgb_to_grayscale(image)
tf.image.resize(image, [3, 3], "nearest") | tf.image.adjust_contrast(image, 0.5)
tf.image.resize(image, [3, 3], "bicubic") | tf.image.resize(image, [3, 3], "area")
tf.image.resize(image, [3, 3], "lanczos3") | tf.image.adjust_brightness(image, 0.1)
tf.image.crop_and_resize(image[None], [[0, 0, 1, 0.5]], [0], [2, 2])
tf.image.per_image_standardization(image) | tf.image.central_crop(image, 0.5)
tf.image.resize_with_crop_or_pad(image, 3, 5) | tf.image.rgb_to_hsv(image / 9)
tf.image.convert_image_dtype(tf.cast(image, tf.uint8), tf.float32) | tf.image.hsv_to_rgb(image / 9)
tf.image.adjust_hue(image / 9, 0.1) | tf.image.adjust_saturation(image / 9, 0.5)
tf.image.adjust_gamma(tf.abs(image)) | tf.image.transpose(image) | tf.image.rot90(image, k)
tf.io.decode_png(tf.io.encode_png(tf.cast(image, tf.uint8)))
tf.io.decode_jpeg(tf.io.encode_jpeg(tf.cast(image, tf.uint8)))
tf.io.decode_image(tf.io.encode_png(tf.cast(image, tf.uint8)))
tf.image.extract_patches(image[None], [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID")
tf.image.stateless_random_flip_left_right(image, [k, 1]) | tf.nn.space_to_depth(image[None], 2)
tf.image.stateless_random_crop(image, [2, 2, 3], [k, 1])
tf.nn.avg_pool2d(image[None], 2, 1, "SAME") | tf.random.stateless_normal([3], [k, 2])
tf.random.stateless_uniform([3], [k, 2], 0, 9, tf.int32)
tf.random.stateless_binomial([3, 1], [k, 2], [4.0], [0.5])
tf.random.experimental.index_shuffle(k, [1, 2], 9)
tf.random.stateless_gamma([3, 1], [k, 2], [0.5]) | tf.random.stateless_poisson([3], [k, 2], 0.5)
tf.random.experimental.stateless_fold_in([1, 2], k) | tf.random.stateless_categorical(x, 2, [k, 3])
tf.random.stateless_parameterized_truncated_normal([2], [k, 3])
tf.raw_ops.StatelessMultinomial(logits=x, num_samples=2, seed=[1, 2]) | tf.one_hot(k, 5)
tf.eye(3) * k_ | tf.linspace(0.0, k_, 3) | tf.range(k) | tf.fill([2], k_) | tf.ones_like(x)
tf.zeros([k]) | tf.zeros_like(k) | tf.rank(x[:k]) | tf.sin(x) | tf.cos(x) | tf.tan(x) | tf.asin(s)
tf.acos(s) | tf.atan(x) | tf.atan2(x, s) | tf.sinh(s) | tf.cosh(s) | tf.asinh(x) | tf.acosh(x)
tf.atanh(s) | tf.math.expm1(s) | tf.math.log1p(tf.abs(x)) | tf.math.softplus(x)
tf.math.softsign(x) | tf.nn.selu(x) | tf.nn.leaky_relu(x) | tf.nn.gelu(x) | tf.math.erf(x)
tf.math.erfc(x) | tf.math.lgamma(tf.abs(x)) | tf.math.digamma(tf.abs(x)) | tf.math.ceil(x)
tf.math.rint(x) | tf.pow(tf.abs(x), 2.5) | tf.math.xlogy(x, tf.abs(s)) | tf.nn.relu6(x)
tf.math.xdivy(x, s) | tf.math.xlog1py(x, tf.abs(s)) | tf.math.squared_difference(x, s)
tf.truncatediv(7, k + 1) | tf.truncatemod(7, k + 1) | tf.math.multiply_no_nan(x, s)
tf.nn.log_softmax(x) | tf.reduce_logsumexp(x) | tf.math.reduce_euclidean_norm(x)
tf.math.cumulative_logsumexp(x) | tf.math.top_k(x[0], 2)[1] | tf.math.in_top_k([k], x[:1], 2)
tf.math.bincount([k, 1, k]) | tf.histogram_fixed_width(x, [-1.0, 1.0], 3) | tf.argsort(x)
tf.math.segment_sum(x, [0, 0, 1, 1]) | tf.math.segment_mean(x, [0, 0, 1, 1])
tf.math.segment_max(x, [0, 0, 1, 1]) | tf.math.segment_min(x, [0, 0, 1, 1])
tf.math.segment_prod(x, [0, 0, 1, 1]) | tf.math.unsorted_segment_max(s, [k, 0, 1, k], 3)
tf.math.unsorted_segment_min(s, [k, 0, 1, k], 3) | tf.math.unsorted_segment_prod(s, [k, 0, 1, k], 3)
tf.math.unsorted_segment_mean(s, [k, 0, 1, k], 3) | tf.sparse.segment_sum(x, [0, k], [0, 1])
tf.sparse.segment_mean(x, [0, k], [0, 1]) | tf.unique([k, 1, k])[0] | tf.where(x > 0)
tf.unique_with_counts([k, 1, k])[2] | tf.boolean_mask(x, x > 0)
tf.dynamic_partition(x[:, 0], [k, 0, 1, 0], 3)[0] | tf.dynamic_stitch([[0], [1]], [x[:1], s[:1]])
tf.gather_nd(x, [[k, 1]]) | tf.scatter_nd([[k]], [k_], [4])
tf.tensor_scatter_nd_add(x, [[k]], s[:1]) | tf.tensor_scatter_nd_sub(x, [[k]], s[:1])
tf.tensor_scatter_nd_max(x, [[k]], s[:1]) | tf.tensor_scatter_nd_min(x, [[k]], s[:1])
tf.broadcast_to(x[0], [2, 3]) | tf.broadcast_dynamic_shape([k, 1], [1, 3])
tf.reverse_sequence(x, [1, 2, 3, k], 1) | tf.sequence_mask([k, 2]) | tf.meshgrid([k, 1], [2, 3])[0]
tf.linalg.band_part(x[:3], 1, 0) | tf.linalg.diag(x[0]) | tf.linalg.diag_part(x[:3])
tf.linalg.set_diag(x[:3], x[0]) | tf.linalg.trace(x[:3]) | tf.linalg.det(x[:3])
tf.linalg.cholesky(tf.eye(3) * (k_ + 1)) | tf.linalg.solve(tf.eye(3) * (k_ + 1), x[:3])
tf.linalg.qr(x)[1] | tf.linalg.eigvalsh(tf.eye(3) * k_)
tf.linalg.triangular_solve(tf.eye(3), x[:3]) | tf.einsum("ij,kj->ik", x, s) | tf.linalg.expm(x[:3])
tf.tensordot(x, s, [[0], [0]]) | tf.linalg.matvec(x, s[0]) | tf.linalg.cross(x, s)
tf.matmul(x[None], x[None], transpose_b=True) | tf.clip_by_norm(x, 1.0)
tf.clip_by_global_norm([x], 1.0)[0] | tf.linalg.normalize(x)[0] | tf.nn.l2_normalize(x, -1)
tf.nn.moments(x, 0)[1] | tf.nn.softmax_cross_entropy_with_logits(s, x)
tf.nn.sigmoid_cross_entropy_with_logits(s, x) | tf.nn.embedding_lookup(s, [k, 1])
tf.nn.depthwise_conv2d(image[None], tf.ones([2, 2, 3, 1]), [1, 1, 1, 1], "SAME")
tf.nn.depth_to_space(tf.nn.space_to_depth(image[None], 2), 2) | tf.nn.dropout(x, 0.0)
tf.nn.conv1d(x[None], tf.ones([2, 3, 1]), 1, "SAME")
tf.nn.batch_normalization(x, 0.0, 1.0, s, s, 0.1)
tf.space_to_batch(image[None], [2, 2], [[0, 0], [0, 0]])
tf.batch_to_space(tf.tile(image[None], [4, 1, 1, 1]), [2, 2], [[0, 0], [0, 0]])
tf.signal.fft(tf.cast(x, tf.complex64)) | tf.signal.ifft(tf.cast(x, tf.complex64))
tf.signal.rfft(x) | tf.signal.irfft(tf.signal.rfft(tf.ones([4]) * k_))
tf.math.real(tf.complex(x, s)) | tf.math.imag(tf.complex(x, s)) | tf.abs(tf.complex(x, s))
tf.math.angle(tf.complex(x, s)) | tf.math.conj(tf.complex(x, s)) | tf.signal.frame(x[:, 0], 2, 1)
tf.signal.hann_window(4) * k_ | tf.signal.stft(tf.ones([8]) * k_, 4, 2) | tf.signal.dct(x)
tf.bitwise.bitwise_or(k, 6) | tf.bitwise.invert(k) | tf.bitwise.left_shift(k, 2)
tf.raw_ops.PopulationCount(x=k) | tf.math.logical_xor(x > 0, s > 0) | tf.math.argmin(x)
tf.math.floordiv(7, k + 1) | tf.raw_ops.ApproximateEqual(x=x, y=s) | tf.math.nextafter(x[0], s[0])
tf.math.polyval([1.0, 2.0], x) | tf.math.bessel_i0(s) | tf.math.reduce_std(x)
tf.math.reduce_variance(x) | tf.math.zero_fraction(x) | tf.math.sobol_sample(2, 3) * k_
tf.raw_ops.Bucketize(input=x, boundaries=[0.0, 1.0]) | tf.math.igamma(tf.abs(s), tf.abs(x))
tf.math.betainc(0.5, 0.5, tf.nn.sigmoid(x)) | tf.math.zeta(2.0 + k_, 1.0)
tf.math.ndtri(tf.nn.sigmoid(x)) | tf.math.erfinv(tf.tanh(x))
tf.math.invert_permutation([1, 0, 2][::1]) * k | tf.math.cumprod(x, -1) | tf.math.mod(7, k + 1)
tf.quantization.fake_quant_with_min_max_args(x) | tf.RaggedTensor.from_row_lengths(x, [1, 3])
tf.RaggedTensor.from_row_lengths(x, [1, 3]).to_tensor() | tf.ragged.range([k, 2])
tf.reduce_sum(tf.RaggedTensor.from_row_lengths(x, [1, 3]))
tf.ragged.stack([x[0], x[1]]).to_tensor() | tf.RaggedTensor.from_tensor(x)
tf.gather(tf.RaggedTensor.from_row_lengths(x, [1, 3]), [1])
tf.concat([tf.ragged.range([k, 2]), tf.ragged.range([2, k])], 1) | tf.sparse.from_dense(x)
tf.sparse.to_dense(tf.sparse.from_dense(x)) | tf.sparse.reduce_sum(tf.sparse.from_dense(x))
tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(x), s, False, True)
tf.sparse.concat(0, [tf.sparse.from_dense(x)] * 2) | tf.sparse.reorder(tf.sparse.from_dense(x))
tf.sparse.reshape(tf.sparse.from_dense(x), [3, 4]) | tf.sparse.softmax(tf.sparse.from_dense(x))
tf.sparse.slice(tf.sparse.from_dense(x), [0, 0], [2, 2]) | tf.scan(lambda a, v: a + v, x)
tf.sparse.add(tf.sparse.from_dense(x), tf.sparse.from_dense(s)) | tf.foldl(lambda a, v: a + v, x)
tf.sparse.fill_empty_rows(tf.sparse.from_dense(x), 0.0)[0] | tf.vectorized_map(lambda v: v * 2, x)
tf.map_fn(lambda v: v * k_, x) | tf.switch_case(k, [lambda: x, lambda: s, lambda: -x])
tf.switch_case(k, [lambda: check(x), lambda: check(s)]) | loop(k, lambda y: [check(y) + 1.0], x)
cond(k > 0, lambda: check(x), lambda: s) | tf.case([(k > 1, lambda: x)], lambda: s)
tf.function(lambda v: v * v)(x) | tf.function(check)(x) | tf.unravel_index(k, [2, 3])
tf.edit_distance(tf.sparse.from_dense([[k + 1]]), tf.sparse.from_dense([[1]]))
tf.identity_n([x, s])[1] | tf.stop_gradient(x) | tf.grad_pass_through(tf.round)(x)
tf.repeat(x, [1, 2, 0, k], 0) | tf.tile(x, [1, k]) | tf.squeeze(x[:, :1], 1) | tf.unstack(x)[0]
tf.split(x, 2)[1] | tf.searchsorted([0.0, 0.5], x[0]) | tf.bitcast(k, tf.float32) | tf.add_n([x, s])
tf.gradients(tf.image.resize(image, [3, 3]), image)[0] | tf.saturate_cast(k, tf.uint8)
tf.gradients(tf.sqrt(tf.abs(x)), x)[0] | tf.gradients(tf.math.rsqrt(tf.abs(x)), x)[0]
tf.gradients(tf.nn.elu(x), x)[0] | tf.gradients(tf.nn.leaky_relu(x), x)[0]
tf.gradients(tf.gather(x, [k, 0]), x)[0] | tf.gradients(x[1:], x)[0]
tf.gradients(tf.nn.max_pool2d(image[None], 2, 1, "SAME"), image)[0]
"""
# Of a data set d of vectors, beside the pipelines of `test_user_programs`.
_OF_DATA_SETS = """
d.map(lambda x: tf.cast(x[0], "int32")).unique() | d.ignore_errors()
d.window(2).map(lambda x: x.reduce(tf.zeros(3), tf.add))
d.window(2).map(lambda x: x.cardinality())
d.window(2).map(lambda x: x.batch(2).get_single_element())
d.apply(tf.data.experimental.assert_cardinality(5)) | d.with_options(tf.data.Options())
d.batch(2, num_parallel_calls=2)
d.interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(2), 2, 1, 2)
d.map(lambda x: x[:1]).batch(2).padded_batch(2)
tf.data.Dataset.choose_from_datasets([d, d.map(tf.abs)], tf.data.Dataset.range(2).repeat(2))
tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(tf.eye(3))).map(tf.sparse.to_dense)
tf.data.Dataset.from_tensor_slices(tf.ragged.range([2, 3])).map(lambda r: r * 2)
d.map(lambda x: x[0]).apply(tf.data.experimental.dense_to_ragged_batch(2)).map(lambda r: r)
"""


def check(value):
  """What raises for some values."""
  with tf.control_dependencies([tf.debugging.Assert(tf.reduce_max(value) < 99, [value])]):
    return tf.identity(value)


def _serialized(value):
  """The tensors of a value, which may be sparse or ragged, as one text."""
  parts = tf.nest.flatten(value, expand_composites=True)
  return tf.strings.join([tf.io.encode_base64(tf.io.serialize_tensor(part)) for part in parts], " ")


def of_elements():
  """The names of expressions, and a data set whose two elements are a text of each of them."""
  tables = (test_ops._AT_ONCE, test_ops._OTHERS, _OF_ELEMENTS)
  expressions = [e for table in tables for e in test_ops._expressions(table)]
  rng = np.random.default_rng(0)
  s, n = tf.constant(rng.uniform(-0.9, 0.9, [4, 3]), tf.float32), tf.constant(1)
  feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1, 2]))
  features = tf.train.Features(feature={"v": feature})
  example = tf.constant(tf.train.Example(features=features).SerializeToString())

  def compute(x, k, t):
    image = tf.abs(tf.reshape(tf.concat([x] * 4, 0), [4, 4, 3]))
    numbers = dict(k_=tf.cast(k, tf.float32), n_=tf.cast(n, tf.float32))
    functions = dict(
      cond=tf.cond,
      entropy=test_ops._entropy,
      loop=test_ops._loop,
      words=test_ops._words,
      check=check,
    )
    names = dict(tf=tf, x=x, k=k, t=t, s=s, n=n, image=image, example=example)
    return tf.stack([_serialized(eval(e, {**names, **numbers, **functions})) for e in expressions])

  elements = (
    rng.normal(size=(2, 4, 3)).astype(np.float32),
    np.int32([1, 2]),
    np.array(["ab cb", "hello w\u00f6rld"], object),
  )
  whole = tf.autograph.experimental.do_not_convert(compute)
  return expressions, tf.data.Dataset.from_tensor_slices(elements).map(whole)


def of_data_sets():
  """Data sets by their expressions, whose elements are a text each."""
  tables = (test_user_programs._PIPELINES, _OF_DATA_SETS)
  expressions = [e for table in tables for e in test_user_programs._parts(table)]
  d = tf.data.Dataset.from_tensor_slices(
    np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
  )
  return {
    e: test_user_programs._evaluated(e, d=d).map(lambda *element: _serialized(element))
    for e in expressions
  }
