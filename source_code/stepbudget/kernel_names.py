"""What does a kernel's name tell? Whether it multiplies on Tensor Cores, in which arithmetic, and what it is in short.

Names are those that Nsight Systems prints (demangled, types of parameters as T1, T2, …), Nsight Compute's, or those of
PyTorch's profiler, which leaves some as the compiler wrote them.

Sources: kernel names in profiles of cuBLAS, cuDNN, CUTLASS, PyTorch, FlashAttention and TensorRT from Volta to
Blackwell; the sources of CUTLASS, FlashAttention and PyTorch where they are open.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

YES, NO, UNKNOWN = "yes", "no", "unknown"

# --- Tensor Cores? ------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What a pattern in a kernel's name says, and why."""

    verdict: str
    pattern: str
    why: str


# First match wins.
RULES = [
    # Named like matrix products, or beside them, and without Tensor Cores.
    Rule(NO, r"_[fdh]{1,2}fma2?(_|$)|_i?dp4a(_|$)", "ffma, dfma, hfma2, dp4a: multiply-adds of the CUDA cores"),
    Rule(NO, r"simt_|MmaSimt|OpClassSimt", "simt: CUTLASS's kernels for the CUDA cores"),
    Rule(NO, r"volta_hgemm|_scudnn|winograd", "written for the CUDA cores"),
    Rule(NO, r"(dgrad|wgrad(_alg\d)?)_engine<float|wgrad_alg0_engine", "cuDNN's older engines: CUDA cores"),
    Rule(NO, r"(im|ex)plicit_convolve_sgemm<float", "sgemm: FP32 arithmetic of the CUDA cores"),
    Rule(NO, r"gemv|gemmSN_\w{1,200}<float|\bdot_kernel", "matrix-vector and small FP32 products: CUDA cores"),
    Rule(NO, r"splitKreduce|ReduceSplitK", "adds up the parts of a split-K product; multiplies nothing itself"),
    Rule(NO, r"nchwToNhwc|nhwcToNchw", "changes a layout; multiplies nothing"),
    Rule(
        NO,
        r"dot_do_o|flash_bwd_(convert|clear)|flash_fwd_splitkv_combine|FlashAttn\w{0,200}(Combine|Preprocess|Postprocess)",
        "prepares or finishes attention; its products are in another kernel",
    ),
    Rule(NO, r"fmha_cutlass[FB]_\w{0,200}_sm50", "CUTLASS attention for GPUs before Volta: CUDA cores"),
    Rule(UNKNOWN, r"fmha_cutlass[FB]_f32|conv2d_c1_k1", "the name does not tell"),
    # The instruction's shape in the name: [what is accumulated][M][N][K].
    Rule(YES, r"^(?=.*[his]884)(?=.*(gemm|cudnn))", "884: Volta's HMMA"),
    Rule(YES, r"[hisc]1688|i8816", "1688, i8816: Turing's HMMA and IMMA; s1688 on Ampere: TF32"),
    Rule(YES, r"[hisc]16816|[hisc]168(32|64)|[dz]884", "16816, i16832, d884: HMMA, IMMA, DMMA of Ampere"),
    Rule(YES, r"_tensor\d+x\d+x\d+", "tensor…x…x…: shape of a Tensor Core instruction, Volta and later"),
    Rule(YES, r"m(8|16)n8k\d|m16n16k(8|16)|m32n8k16|m8n32k16", "m…n…k…: shape of PTX's mma instruction"),
    Rule(YES, r"tensorop|wmma", "tensorop, wmma: CUTLASS's and CUDA's names for Tensor Core code"),
    Rule(YES, r"\bMmaTensorOp\b|OpClass(Wmma)?TensorOp", "MmaTensorOp: CUTLASS's class for Tensor Core code"),
    Rule(YES, r"(?i:(?<![a-z])[hidq]mma(?![a-z]))", "hmma, imma, dmma, qmma: the Tensor Cores' instructions"),
    Rule(YES, r"SM(70|75|80|89|120)_\d+x\d+x\d+_", "cute's name of an mma instruction"),
    Rule(YES, r"warpgroupsize|gmma|GMMA|Gmma", "warpgroup, wgmma: Hopper's instruction"),
    Rule(YES, r"nvjet_", "nvjet: cuBLAS's Tensor Core kernels since Hopper"),
    Rule(YES, r"tcgen05|UMMA|Umma|utc\w?mma", "tcgen05, UMMA: Blackwell's instruction"),
    Rule(YES, r"flash_(fwd|bwd)|FlashAttn(Fwd|Bwd)Sm\d+", "FlashAttention 2 and 3 multiply with mma and wgmma only"),
    Rule(YES, r"_flash_[fb]prop_", "cuDNN's flash attention: FP16, BF16 or FP8 on Tensor Cores"),
    Rule(YES, r"fmha_cutlass[FB]_(bf16|f16)", "CUTLASS attention, FP16 or BF16 from Volta on"),
    # Inductor's kernels say their kind: only its templates (tem, mm) hold a matrix product.
    Rule(NO, r"^triton_(poi|red|per|for|spl)_", "Inductor's pointwise, reducing, foreach and scanning kernels"),
    # Matrix products whose names do not tell.
    Rule(UNKNOWN, r"^triton_|implicit_convolve|xmma|cudnn_generated|cutlass|tinygemm", "the name does not tell"),
    # Families that multiply no matrices, or do so without Tensor Cores.
    Rule(
        NO,
        r"\bat::(?!PackedTensor|GenericPacked)|cub::|thrust::",
        "kernels of PyTorch, CUB",
    ),
    Rule(NO, r"(?<![A-Za-z])[sdcz]gemm(?![a-z])", "sgemm, dgemm, cgemm: plain arithmetic of the CUDA cores"),
    Rule(
        UNKNOWN,
        r"(?i:gemm|conv(?!ert)|matmul|attention|attn|fmha|(?<![a-z])mma|wgrad|dgrad|fprop|mlp|_dense|(?<!bi)linear)",
        "named like a matrix product; the name does not tell",
    ),
    Rule(
        NO,
        r"(?i:elementwise|elemwise|reduc|softmax|pool|transpose|dropout|nll_loss|embedding"
        r"|layer_?norm|batch_?norm|\bbn_|multi_tensor|fft2d|scal_kernel|epilogue|copy|fill|scan|sort|index|gather"
        r"|scatter|relu|bias|cast|convert|memcpy|memset|random|philox)",
        "multiplies no matrices",
    ),
]  # fmt: skip
_COMPILED = [(re.compile(rule.pattern), rule) for rule in RULES]
LONGEST = 10_000  # letters of a name that are read: the course's longest has 5,809, and each costs 2 µs
_NO_RULE = Rule(UNKNOWN, "", "no rule knows the name")
_MOVES_DATA = Rule(NO, "", "moves data between GPUs")


def without_middle(kernel: str) -> str:
    """The name; of one with more than ``LONGEST`` letters its beginning and its end, which tell what it is."""
    return kernel if len(kernel) <= LONGEST else f"{kernel[: LONGEST // 2]} … {kernel[-LONGEST // 2 :]}"


@lru_cache(maxsize=65_536)
def rule_of(kernel: str) -> Rule:
    """The rule that decides on kernels of this (demangled) name: verdict, pattern, and why."""
    known = (rule for pattern, rule in _COMPILED if pattern.search(kernel))
    return _MOVES_DATA if is_collective(kernel) else next(known, _NO_RULE)


def by_name(kernel: str) -> str:
    """``"yes"``, ``"no"`` or ``"unknown"``: do kernels of this (demangled) name run on Tensor Cores?

    A kernel known to be no matrix product at all (pooling, an optimizer's update) is a plain ``"no"``.
    """
    return rule_of(kernel).verdict


# --- what it computes ---------------------------------------------------------------------------------------

# What multiplies matrices …
PRODUCT = re.compile(
    r"gemm(?!v)|Gemm|GEMM|nvjet|xmma|_scudnn|wgrad|dgrad|fprop|winograd_\d|implicit_convolve|conv2d|conv3d|conv_depthwise"
    r"|cudnn_generated\w{0,200}(conv|Conv|matMul|sdpa)|fmha|flash_(fwd|bwd)|FlashAttn(Fwd|Bwd)Sm|tensorop|[his]884|16816|[his]1688|i8816"
    r"|triton_(tem|mm)|matmul"
)
# … and what only serves it: it belongs to the op that launched it where that is known, else to none.
HELPER = re.compile(
    r"splitKreduce|ReduceSplitK|nchwToNhwc|nhwcToNchw|transpose|Transpose|epilogue|dot_do_o|flash_bwd_(convert|clear)"
    r"|splitkv_combine|FlashAttn\w{0,200}(Combine|Preprocess|Postprocess)|convertTensor|scal_kernel|prolog|im2col|gemv"
)
# CUTLASS's kernels are all called Kernel; what they do stands in their first parameter.
OUTER_NAME = re.compile(r"(?:void )?(?:[\w:]+::)?(?:Kernel2?|device_kernel)<(?:[\w:]*enable\w*<)?[^<(]*|[^<(]*")
CHANGES_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw")
CONVOLVES = re.compile(r"conv|Conv|fprop|dgrad|wgrad|cudnn|fft2d|winograd|implicit_gemm")

# What serves one way to convolve and no other: a Fourier transform, a change of layout.
SERVES = re.compile(r"fft|winograd|nchwToNhwc|nhwcToNchw|im2col", re.IGNORECASE)

# What moves data between GPUs: a library that does nothing else (NCCL, RCCL, MSCCL, NVSHMEM, DeepEP, PyTorch's c10d,
# Transformer Engine's userbuffers), multimem (the instructions that reach several GPUs), or the operation itself, as
# vLLM, SGLang, TensorRT-LLM, FlashInfer and PyTorch call theirs; not a reduction within a warp or a block.
COLLECTIVE = re.compile(
    r"nccl|rccl|msccl|nvshmem|\bdeep_ep::|\bc10d::|userbuffers|multimem|quickreduce|cross_device_reduce"
    r"|(?<!warp)(?<!warp_)(?<!block)(?<!block_)(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|moe_?a2a)",
    re.IGNORECASE,
)

# Arithmetic.
SIXTEEN_BITS = re.compile(r"half|bfloat16|bf16|f16", re.IGNORECASE)
TF32 = re.compile(r"tf32|TF32|tfloat32|cutlass_80_tensorop_s1688gemm_\d")
HALF = re.compile(r"half|bfloat16|bf16|[^a-z]f16|fp16|hgemm|[hs]16816|[hs]161616|[hs]884")
FP64 = re.compile(r"double|dgemm|f64|dfma|d884")
FP32 = re.compile(r"_ffma|sgemm|_scudnn|cgemm|f32f32_f32f32|<float|fft2d|, float,")


def is_product(kernel: str) -> bool:
    """Do kernels of this name multiply matrices or convolve? Helpers (split-K sums, layout changes) do not."""
    if is_helper(kernel):
        return False
    if re.search(r"\bat::native::", kernel):
        return bool(re.search(r"tinygemm|conv_depthwise|int4_mm", kernel))
    return bool(PRODUCT.search(kernel))


def is_helper(kernel: str) -> bool:
    """Do kernels of this name only serve a product: sum its parts, change its layout?"""
    return bool(HELPER.search(OUTER_NAME.match(kernel).group(0)))


def is_collective(kernel: str) -> bool:
    """Do kernels of this name communicate with other GPUs? Their own name says so, not what they are given."""
    return bool(COLLECTIVE.search(re.match(r"[^<(]*", UNNAMED.sub("", kernel)).group()))


def arithmetic(kernels: Sequence[str]) -> tuple[str, str]:
    """``"FP32"``, ``"FP64"``, ``"half"`` or ``""`` for an operation's product kernels, and the kernel that tells."""
    products = [name for name in kernels if is_product(name)] or [
        name for name in kernels if not is_helper(name) and "at::native" not in name
    ]
    for kind, pattern in (("FP64", FP64), ("half", HALF), ("FP32", FP32)):
        for name in products:
            if pattern.search(name):
                return kind, name
    return "", products[0] if products else ""


# How many numbers a thread fetches at once, where a library writes it: CUTLASS's ``align1`` (of all operands), xmma's
# ``aligna2_alignc8`` (of each). Of 16-bit numbers 8 are 16 bytes, the most that one fetch takes; of TF32, 4.
ALIGNED = re.compile(r"_align[a-c]?(\d{1,2})(?![\dx])")
EIGHT_BITS = re.compile(r"i8816|i168(32|64)|(?<![a-z0-9])[su]8(?!\d)|e4m3|e5m2", re.IGNORECASE)
WRITTEN_FOR = re.compile(r"(?:cutlass_|\bsm|_sm)(\d{2,3})(?=_)")


def alignment(kernel: str) -> int | None:
    """Of how many numbers the matrices' lines must be multiples for a product kernel of this name; None: not told."""
    found = ALIGNED.findall(kernel) if is_product(kernel) else []
    return min(map(int, found)) if found else None


def is_misaligned(kernel: str) -> bool:
    """Does a Tensor Core kernel of this name take lines that begin at any multiple of less than 16 bytes?

    Libraries fall back to such kernels where a matrix's lines do not begin at a multiple of 16 bytes: sizes that are no
    multiple of 8 in FP16 and BF16, of 4 in TF32. Kernels for FP64 and 8-bit numbers are not judged.
    """
    least = alignment(kernel)
    if least is None or by_name(kernel) != YES or FP64.search(kernel) or EIGHT_BITS.search(kernel):
        return False
    return least < (8 if HALF.search(kernel) else 4)


def written_for(kernel: str) -> tuple[int, int] | None:
    """The compute capability that a kernel of this name was written for, such as (7, 5); None where it does not say."""
    found = WRITTEN_FOR.search(kernel)
    return divmod(int(found[1]), 10) if found else None


# --- the name itself ----------------------------------------------------------------------------------------

# Kernels that only apply what they are given: their template arguments say what is computed, their name does not.
WRAPPERS = re.compile(
    r"(vectorized|unrolled|legacy)?_?elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|Kernel2?|device_kernel"
)
# Words in template arguments that do not say it either: types, containers, and wrappers inside wrappers.
FILLERS = re.compile(
    r"void|int|unsigned|long|char|float|double|bool|const|operator|Half|half_t|__half|BFloat16|array|T\d*|lambda|"
    r"BinaryFunctor|ReduceOp|func_wrapper_t|gpu_kernel_impl(_nocast)?|TensorListMetadata|unnamed|instance|enable_if_t"
)
# Pieces of a generated name that say the least, the least first; each is cut only while the name is too long.
MINOR = [
    r"(?<=^multi_tensor_apply)_kernel",
    r"_execute(_\w+)?_kernel__5x_\w+$",
    r"_align(_?[a-z]?\d+)(_?align[a-z]\d+)?",
    r"_stage\d+",
    r"_warpsize\w+?x\d+x\d+",
    r"_g\d+(?=_|$)",
    r"_(nchw|nhwc)\w*?_(nchw|nhwc)(?=_|$)",
    r"_tilesize\d+x\d+x\d+",
    r"_implicit_gemm(_indexed)?",
]


UNNAMED = re.compile(r"<unnamed>::|\(anonymous namespace\)::")  # a namespace, which says nothing
RETURNS = re.compile(r"^(?:void|std::enable_if<.*?>::type) ")


def short(name: str, width: int = 60) -> str:
    """A kernel's name on one line of at most ``width`` characters: ``vectorized_elementwise_kernel<FillFunctor>``.

    Return type, call arguments and PyTorch's namespaces are dropped, template arguments become ``<…>``; where the name
    alone says nothing, the functor stays. An ``…`` stands wherever something was left out of a generated name.
    """
    library, own, arguments = _parts(name)
    if arguments:
        telling = _functors(arguments) if WRAPPERS.fullmatch(own) else []
        if telling and telling[0].startswith("cutlass_"):  # a generated name, wrapped
            library, own = "", telling[0]
        else:
            own += f"<{', '.join(telling) or '…'}>"
    own = library + own
    for piece in MINOR:
        if len(own) > width:
            own = re.sub(piece, "_…", own)
            own = re.sub(r"(_…)+", "_…", own)
    return own if len(own) <= width else own[: width - 1] + "…"


# A single step's kernels, in a word or two. First match wins; else the kernel's short name.
NICKNAMES = [
    ("conv forward", r"fprop|implicit_convolve"),
    ("conv dgrad", r"dgrad"),
    ("conv wgrad", r"wgrad|Wgrad"),
    ("matmul", r"gemm|nvjet"),
    ("pool backward", r"max_pool_backward"),
    ("pool", r"max_pool_forward"),
    ("layout", r"nchwToNhwc|nhwcToNchw"),
    ("FFT", r"^(void )?fft2d"),
    ("dropout", r"dropout"),
    ("ReLU", r"launch_clamp_scalar"),
    ("ReLU backward", r"threshold_kernel"),
    ("sum", r"reduce_kernel"),
    ("fill", r"FillFunctor"),
    ("add", r"CUDAFunctor_add"),
    ("optimizer", r"multi_tensor_apply"),
    ("loss", r"nll_loss"),
    ("softmax", r"softmax"),
]


def nickname(name: str) -> str:
    """A kernel's name in a word or two, for a bar: ``conv wgrad``, ``matmul``, ``pool``."""
    found = next((nick for nick, pattern in NICKNAMES if re.search(pattern, name)), None)
    return found or re.sub(r"<.*", "", short(name)).rpartition("::")[2]


def _parts(name: str) -> tuple[str, str, str]:
    """The library that a kernel names as its own (``cudnn::``; none for PyTorch), its name, its template arguments."""
    name = UNNAMED.sub("", RETURNS.sub("", name.strip()))
    head = re.match(r"[^<(]*", name).group()
    rest = name[len(head) :]
    space, _, own = head.strip().rpartition("::")
    if own == "kernel":  # its namespace is its name, as in gemvx::kernel
        space, _, outer = space.rpartition("::")
        own = f"{outer}::kernel" if outer else own
    library = re.match(r"(?:(?:at|c10)(?=::|$))?(\w*?)(?:__5x_\w+)?(?:::|$)", space).group(1)
    return f"{library}::" if library else "", own or name, _balanced(rest) if rest.startswith("<") else ""


def _balanced(text: str) -> str:
    """What stands between the ``<`` that the text begins with and the ``>`` that belongs to it."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0:
            return text[1:place]
    return text[1:]  # Nsight may have cut the name


def _functors(arguments: str, most: int = 2) -> list[str]:
    """What a wrapper applies: the first words of its template arguments that say something."""
    while (plain := re.sub(r"\([^()]*\)|\[[^][]*\]", "", arguments)) != arguments:
        arguments = plain
    words = [word.rpartition("::")[2] for word in re.findall(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", arguments)]
    telling = [word for word in words if word and not FILLERS.fullmatch(word)]
    if telling and not telling[0].endswith(("OpFunctor", "ScalarFunctor", "AlphaFunctor", "ListFunctor")):
        most = 1  # the others only take an operation, which is the word after
    return list(dict.fromkeys(telling))[:most]


# In a mangled name: what is said again (S4_), numbers among the arguments (Li64E), and the length of a word.
MANGLED = re.compile(r"S[0-9A-Z]*_|L[a-z]\d+E|E\d+E|([1-9]\d*)(?=[A-Za-z_])")


@cache
def demangled(name: str) -> str:
    """A name that PyTorch left as the compiler wrote it (``_ZN7cutlass6Kernel…``) as its words: ``cutlass::Kernel<…>``.

    PyTorch asks the C++ library, which cannot read some of cuDNN's names. In them each word stands behind its length.
    """
    if not name.startswith("_Z"):
        return name
    words, at = [], 0
    while found := MANGLED.search(name, at):
        at = found.end() + int(found[1] or 0)
        words += [name[found.end() : at]] if found[1] else []
    return f"{words[0]}::{words[1]}<{', '.join(words[2:])}>" if len(words) > 2 else name


# Words of a kernel's name that the two profilers write differently, or only one of them writes.
WRITTEN_AS = {"true": "1", "false": "0"}
SAYS_NOTHING = re.compile(r"void|int|bool|unsigned|long|short|char|const|std|u?l?|T\d*")


def key(kernel: str) -> str:
    """What two profilers write alike of a kernel's name: its words and numbers, without types and arguments.

    PyTorch writes ``<128, true>`` and ``{lambda(int)#1}``, Nsight Systems ``<(int)128, (bool)1>`` and
    ``[lambda(int) (instance 1)]``.
    """
    name = re.sub(r"\(instance (\d+)\)", r"#\1", kernel.replace("(anonymous namespace)", "").replace("<unnamed>", ""))
    while (plain := re.sub(r"\([^()]*\)", "", name)) != name:
        name = plain
    words = [WRITTEN_AS.get(word, word) for word in re.findall(r"[A-Za-z_]\w*|\d+", name)]
    return " ".join(word for word in words if not SAYS_NOTHING.fullmatch(word))
