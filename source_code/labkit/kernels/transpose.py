"""What do a shared memory's banks cost? A matrix transposed in CUDA C++, five ways, of which one is only a copy.

A warp's 32 threads read or write memory well if they touch neighbouring numbers. A transpose reads along rows and
writes along columns, so one side is scattered, unless a tile is turned in shared memory on the way. Shared memory has
32 *banks*, each of which answers one word of 4 bytes a clock: word ``w`` lies in bank ``w % 32``. Of a tile 32 wide, a
column lies in one bank, and its 32 reads queue. One column more, or another place for each word, and they do not.
"""

import torch

from labkit.kernels import nvrtc

SIDE = 32  # of a tile: rows, columns, and threads of a warp
ROWS_AT_ONCE = 8  # a block is 32 x 8 threads: each moves four numbers
FORMS = {"copy": 0, "direct": 1, "tile": 2, "padded": 3, "swizzled": 4}  # name → FORM

SOURCE = r"""
#define SIDE 32
#define WIDTH (FORM == 3 ? SIDE + 1 : SIDE)                     // padded: a word more in each row
#define PLACE(row, column) (FORM == 4 ? (column) ^ (row) : (column))  // swizzled: no word more, another order

extern "C" __global__ void transpose(const float *in, float *out, int rows, int columns)
{
    __shared__ float tile[SIDE][WIDTH];
    int column = blockIdx.x * SIDE + threadIdx.x, row = blockIdx.y * SIDE + threadIdx.y;
#if FORM <= 1
    for (int j = 0; j < SIDE; j += blockDim.y)
        if (row + j < rows && column < columns) {
            float value = in[(row + j) * columns + column];
            out[FORM == 0 ? (row + j) * columns + column : column * rows + row + j] = value;
        }
#else
    for (int j = 0; j < SIDE; j += blockDim.y)
        if (row + j < rows && column < columns)
            tile[threadIdx.y + j][PLACE(threadIdx.y + j, threadIdx.x)] = in[(row + j) * columns + column];
    __syncthreads();
    column = blockIdx.y * SIDE + threadIdx.x, row = blockIdx.x * SIDE + threadIdx.y;  // of the result
    for (int j = 0; j < SIDE; j += blockDim.y)
        if (row + j < columns && column < rows) {
            float value = tile[threadIdx.x][PLACE(threadIdx.x, threadIdx.y + j)];
            out[(row + j) * rows + column] = value;
        }
#endif
}
"""


def transpose(x: torch.Tensor, form: str = "padded") -> torch.Tensor:
    """``x.t()``, moved in memory, of an FP32 matrix ``(rows, columns)`` on a GPU; ``copy`` leaves it as it is.

    ``form``: a key of FORMS. Raises ValueError for other matrices, KeyError for other forms.
    """
    if x.dim() != 2 or x.dtype != torch.float32 or not x.is_contiguous() or not x.is_cuda or x.numel() >= 2**31:
        raise ValueError("a contiguous FP32 matrix of under 2^31 numbers on a GPU is wanted")
    rows, columns = x.shape
    out = torch.empty((rows, columns) if form == "copy" else (columns, rows), device=x.device)
    launch(x, out, form)
    return out


def launch(x: torch.Tensor, out: torch.Tensor, form: str) -> nvrtc.Kernel:
    """Start a block a tile; the compiled kernel."""
    rows, columns = x.shape
    kernel = nvrtc.compiled(SOURCE, "transpose", (f"-DFORM={FORMS[form]}",))
    kernel((-(-columns // SIDE), -(-rows // SIDE)), (SIDE, ROWS_AT_ONCE), x, out, rows, columns)
    return kernel
