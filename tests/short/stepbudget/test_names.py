"""Names of strangers' programs: builds of CUDA calls, waits in the system, kernels that communicate, loaders, steps."""

from __future__ import annotations

import pytest

from stepbudget.ask import iterations, sums, threads
from stepbudget.ask.budget import budget
from stepbudget.kernel_names import LONGEST, NO, UNKNOWN, YES, by_name, is_collective
from synthetic import opened

POINTWISE, GEMM = "at::native::vectorized_elementwise_kernel", "ampere_s16816gemm_128x64"
ALLREDUCE = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)"
MS = 1000  # µs


# --- calls of CUDA ------------------------------------------------------------------------------------------


BUILDS = ["", "_v7000", "_ptsz", "_ptsz_v7000", "_ptds_v7000", "_v2_ptsz_v12000", "_spt"]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cuStreamSynchronize", "cudaEventSynchronize"])
def test_a_call_is_told_by_its_function_whatever_build_of_it_was_called(made, name, build):
    made.range(0, 400 * MS, "training")
    for at in range(0, 400 * MS, 40 * MS):
        made.kernel(at + 110, at + 10_110, POINTWISE, call=(at + 100, at + 110))
        made.api(at + 200, at + 39_900, name + build)
    report = opened(made)
    found = budget(report)
    assert found.ms["synchronisation"] == pytest.approx(10 * (40 - 10.01), abs=0.5) and found.ms["cuda_setup"] == 0
    assert name in {row[0] for row in sums.sums(report.path)["calls"]}


@pytest.mark.parametrize("build", BUILDS)
def test_so_is_a_call_that_copies(made, build):
    made.range(0, 400 * MS, "training")
    for at in range(0, 400 * MS, 40 * MS):
        made.kernel(at + 110, at + 10_110, POINTWISE, call=(at + 100, at + 110))
        made.api(at + 200, at + 39_900, "cudaMemcpy" + build)
    found = budget(opened(made))
    assert found.busy_fraction is None and "no row tells of 10 of 10 calls that ask for copies" in found.missing.said[0]


@pytest.mark.parametrize("name", ["my_own_call", "cu_", "_cu"])
def test_what_is_no_function_of_cuda_keeps_its_name(made, name):
    report = opened(made.api(0, 1, name).kernel(2, 3, POINTWISE))
    assert report.api["name"].tolist() == [name] == [row[0] for row in sums.sums(report.path)["calls"]]


# --- calls of the operating system --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "read", "pread64", "preadv2", "write", "pwrite", "pwritev64v2", "fsync", "fdatasync", "sendfile64", "splice",
        "io_uring_enter", "io_getevents", "__read_chk", "fgets_unlocked", "recvmmsg", "epoll_pwait2", "futex_waitv",
        "pthread_cond_clockwait", "pthread_mutex_clocklock", "mq_timedreceive", "msgrcv", "sem_clockwait",
    ],
)  # fmt: skip
def test_a_call_that_waits_for_a_device_or_a_thread_is_a_wait(made, name):
    made.range(0, 100 * MS, "training").kernel(0, 1 * MS, POINTWISE, call=(0, 1))
    made.os_call(2 * MS, 90 * MS, name).kernel(95 * MS, 100 * MS, POINTWISE, call=(95 * MS - 9, 95 * MS - 5))
    assert budget(opened(made)).ms["os_wait"] == pytest.approx(88, abs=0.1)


@pytest.mark.parametrize("name", ["mmap64", "pthread_create", "pthread_mutex_unlock", "pthread_rwlock_init", "reader"])
def test_a_call_that_computes_is_none(name):
    assert not threads.WAITS.match(name)


# --- loaders and steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "PartitionedParameterCoordinator.fetch_sub_module", "get_input_embeddings", "get_batch_size",
        "fetch_all_weights", "DefaultModelLoader.load_weights", "next batch",
    ],
)  # fmt: skip
@pytest.mark.parametrize("function", [GEMM, ALLREDUCE])
def test_a_range_that_launches_what_a_model_needs_is_no_loader_whatever_it_is_called(made, name, function):
    for at in range(0, 100 * 10 * MS, 10 * MS):
        made.range(at, at + 6 * MS, name).kernel(at + 5520, at + 6200, function, call=(at + 5500, at + 5510))
        made.kernel(at + 6400, at + 9000, POINTWISE, call=(at + 6300, at + 6310))
    report = opened(made)
    assert budget(report).ms["loader"] == 0
    steps = iterations.step_windows(report)
    assert steps == [] or "." not in name, "who opens a range with each call of a function tells of no step"


@pytest.mark.parametrize(
    "name", ["get_input_embeddings", "get_batch_size", "PartitionedParameterCoordinator.fetch_sub_module"]
)
def test_nor_is_one_that_fetches_something_else_where_no_launch_is_recorded(made, name):
    for at in range(0, 10 * 10 * MS, 10 * MS):
        made.range(at, at + 6 * MS, name).kernel(at + 5520, at + 6200, ALLREDUCE).kernel(
            at + 6400, at + 9000, POINTWISE
        )
    assert budget(opened(made)).ms["loader"] == 0


def test_a_loader_may_prepare_its_batch_on_the_gpu(made):
    for at in range(0, 10 * 10 * MS, 10 * MS):
        made.range(at, at + 6 * MS, "next batch").kernel(at + 5900, at + 5950, POINTWISE, call=(at + 5800, at + 5810))
        made.kernel(at + 6400, at + 10 * MS, GEMM, call=(at + 6300, at + 6310))
    report = opened(made)
    assert budget(report).ms["loader"] == pytest.approx(10 * 5.8, abs=1) and len(iterations.step_windows(report)) == 10


LIBRARYS = [
    "cub::DeviceSelect::Flagged", "thrust::sort_by_key", "cudf::io::read_parquet", "DeepSpeedEngine.forward",
    "[pl][profile][Callback]TQDMProgressBar.on_train_batch_start", "[DALI][Executor] RunMixed",
]  # fmt: skip


@pytest.mark.parametrize("name", LIBRARYS)
def test_what_a_library_opens_around_its_calls_is_no_step(made, name):
    for at in range(0, 300 * MS, MS):
        made.range(at, at + 500, name).kernel(at + 100, at + 900, POINTWISE, call=(at + 50, at + 60))
    assert iterations.step_windows(opened(made)) == []


@pytest.mark.parametrize(
    ("domain", "name", "steps"),
    [
        ("CCCL", "sort", 0),
        ("libcudf", "fetch", 0),
        ("TSL", "XlaModule:#hlo_module=jit_step#", 0),
        ("mine", "fetch", 100),
    ],
)
def test_a_range_in_a_librarys_domain_is_no_step_and_no_loader(made, domain, name, steps):
    for at in range(0, 100 * MS, MS):
        made.range(at, at + 500, name).kernel(at + 600, at + 900, POINTWISE, call=(at + 550, at + 560))
    for row in made._rows["NVTX_EVENTS"]:
        row["domainId"] = 7
    first = made._rows["NVTX_EVENTS"][0]
    made.rows("NVTX_EVENTS", {**first, "end": None, "eventType": 75, "text": domain})
    report = opened(made)
    assert len(iterations.step_windows(report)) == steps
    assert (budget(report).ms["loader"] > 0) == (steps > 0)


@pytest.mark.parametrize("name", ["Trainer.train_step", "[Strategy]DDPStrategy.training_step", "run::training_batch"])
def test_a_function_that_says_it_trains_is_a_step(made, name):
    for at in range(0, 50 * MS, MS):
        made.range(at, at + 900, name).kernel(at + 100, at + 900, POINTWISE, call=(at + 50, at + 60))
    assert len(iterations.step_windows(opened(made))) == 50


# --- kernels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "kuserbuffers_pushsend(int *, int *, int4 *, int4 *, int)", "userbuffers_fp16_sum_inplace_gpu_rw_ag<(int)4>()",
        "void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, (int)16>(T1 *, unsigned long)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16>(float*)",
        "c10d::symmetric_memory::barrier_kernel(unsigned int **, unsigned long)",
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>(const T2 *)",
        "void sglang::cross_device_reduce_2stage<__nv_bfloat16, (int)4>()",
        "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<(int)1>()",
        "tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel(const int *)",
        "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<float>()",
        "nvshmemi_proxy_quiet_entrypoint()",
    ],
)  # fmt: skip
def test_kernels_of_serving_engines_that_communicate(made, name):
    assert is_collective(name) and by_name(name) == NO
    found = budget(opened(made.range(0, 100, "training").kernel(0, 100, name)))
    assert found.ms["communication"] == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["poi", "red", "per", "for", "spl"])
def test_what_inductor_did_not_make_of_a_template_holds_no_matrix_product(kind):
    assert by_name(f"triton_{kind}_fused_addmm_convolution_relu_3") == NO
    assert by_name("triton_tem_fused_addmm_relu_3") == UNKNOWN


def test_of_a_name_without_end_the_beginning_and_the_end_are_read(made):
    """Each rule looks at each letter: 50 names of 200,000 took 22 s."""
    made.range(0, 100, "training").kernel(40, 50, "sgemm", call=(32, 34))
    made.kernel(20, 30, f"void cutlass::Kernel<{'int, ' * 40_000}MmaTensorOp>", call=(12, 14))
    name, plain = opened(made).kernels["name"]
    assert len(name) < LONGEST + 10 and plain == "sgemm"
    assert name.startswith("void cutlass::Kernel<int, ") and name.endswith("int, MmaTensorOp>")
    assert by_name(name) == YES
