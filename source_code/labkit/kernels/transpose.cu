// A matrix transposed, or copied, in one of five FORMs; a block takes a tile of SIDE x SIDE numbers.
enum Form { COPY, DIRECT, TILE, PADDED, SWIZZLED };

constexpr int WIDTH = FORM == PADDED ? SIDE + 1 : SIDE;  // padded: a word more in each row
__device__ int place(int row, int column) {              // in its row; swizzled: no word more, another order
    return FORM == SWIZZLED ? column ^ row : column;
}

extern "C" __global__ void transpose(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[SIDE][WIDTH];
    int column = blockIdx.x * SIDE + threadIdx.x, row = blockIdx.y * SIDE + threadIdx.y;
    if (FORM == COPY || FORM == DIRECT) {
        for (int j = 0; j < SIDE; j += blockDim.y)
            if (row + j < rows && column < columns) {
                float value = in[(row + j) * columns + column];
                out[FORM == COPY ? (row + j) * columns + column : column * rows + row + j] = value;
            }
        return;
    }
    for (int j = 0; j < SIDE; j += blockDim.y)
        if (row + j < rows && column < columns)
            tile[threadIdx.y + j][place(threadIdx.y + j, threadIdx.x)] =
                in[(row + j) * columns + column];
    __syncthreads();
    column = blockIdx.y * SIDE + threadIdx.x, row = blockIdx.x * SIDE + threadIdx.y;  // of the result
    for (int j = 0; j < SIDE; j += blockDim.y)
        if (row + j < columns && column < rows) {
            float value = tile[threadIdx.x][place(threadIdx.x, threadIdx.y + j)];
            out[(row + j) * rows + column] = value;
        }
}
