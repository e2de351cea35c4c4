// Forward, from an image's bytes to what is pooled: conv1, ReLU, conv2, pooling, bias, ReLU, dropout.
//
// A block keeps conv2's weights and makes one sample after another. Three warpgroups make a third of a sample each,
// four of twelve rows of pooling windows, all by the same code:
//
//     shared memory of a block, struct Forward: 134,848 bytes
//     +----------------------+--------------------+--------------------+--------------------+---------+
//     | weight        36,864 | third[0]    32,320 | third[1]    32,320 | third[2]    32,320 | conv1   |
//     | conv2's: A of wgmma  |                    |                    |                    |   1,024 |
//     +----------------------+--------------------+--------------------+--------------------+---------+
//        read by all            warps 0 to 3         warps 4 to 7         warps 8 to 11       read by all
//
//     of a third                what a warpgroup does, sample after sample
//     +---------+--------+      1. bytes out of registers → pairs
//     | hidden  | 18,432 |      2. pairs × conv1 by wgmma (A in registers), ReLU → hidden; next bytes → registers
//     | pairs   |  1,408 |      3. waits for its turn at the Tensor Cores (named barriers TURN, round and round)
//     | pooled  |  8,320 |      4. weight × hidden by wgmma: nine taps, each begun at other pixels → registers
//     | winner  |  4,160 |      5. largest of each window, bias, ReLU, dropout → pooled, winner
//     +---------+--------+      6. pooled, winner → global memory, in whole lines
//
// Of wgmma's 64 rows, a thread's two lie eight apart. The weights lie so that they are neighbouring channels, and are
// stored together: row r is output channel `channel_of_row(r)`.
#include "hopper.cuh"

constexpr int PARTS = 3, THREADS = PARTS * WARPGROUP;
constexpr int PART_ROWS = 2 * WINDOWS_SIDE / PARTS;  // of conv2's output, that a warpgroup makes
constexpr int SEEN_ROWS = PART_ROWS + 4;             // of the image, that both convolutions' taps reach
constexpr int SEEN_WORDS = SEEN_ROWS * IMAGE_SIDE / 4;
constexpr int PARITY = 5 * SIDE;      // hidden pixels that they need: of five even rows, and of five odd ones
constexpr int TILE_PIXELS = 16, PARITY_TILES = 9, TILES = 2 * PARITY_TILES;  // of conv1: whole tiles for each warp
constexpr int WARP_TILES = 5;                                                // four warps: two take the last once more
constexpr int ODD = PARITY_TILES * TILE_PIXELS;  // chunks from an even row's pixel to the one below
constexpr int PLANE = 2 * ODD;                   // and from one plane of eight channels to the next
constexpr int PAIRS = 352;                       // SEEN_ROWS * IMAGE_SIDE, up to whole 128 bytes
constexpr int POSITIONS = WINDOWS / PARTS;       // pooled ones
constexpr int OUTPUTS = 4 * SIDE;                // columns of a product: of a row of windows 26, two of them no output
constexpr int MADE = OUTPUTS / 2;                // windows; the last of each 13 is no output either
constexpr int POOLED_ROW = 160, WINNER_ROW = 80;  // bytes from one window to the next: a warp's stores meet all banks
constexpr int PIECES = INPUTS / PIECE;           // products for conv2: two a tap
constexpr int LAST_PIECES = 2;                   // at the end of a turn, behind which the next warpgroup's come

struct Third {
    char hidden[CHANNELS1 / 8 * PLANE * CHUNK];  // [8 channels][even rows, odd rows][16 bytes]: two outputs of a window
    u32 pairs[PAIRS];                            // above each other end up in one thread
    char pooled[MADE * POOLED_ROW];
    u8 winner[MADE * WINNER_ROW];
};

struct Forward {
    char weight[INPUTS / 8 * CHANNELS2 * CHUNK];  // conv2's: [8 numbers of 9 taps x 32 channels][row][16 bytes]
    Third third[PARTS];
    u32 conv1[CONV1_WORDS];
};

// Named barriers: a warpgroup's own, and its turn at the Tensor Cores. If all multiplied at once, all would end at once,
// and the Tensor Cores would idle while they finish.
enum ForwardBarrier { MINE = 1, TURN = MINE + PARTS };

PTX int channel_of_row(int row) { return row / 16 * 16 + row % 8 * 2 + row / 8 % 2; }

// Where the 16 bytes `chunk` of a third's output lie in shared memory, where each row of windows has one too many.
PTX int staged(int chunk, int chunks_a_position, int window_bytes) {
    const int position = chunk / chunks_a_position, window = position + position / WINDOWS_SIDE;
    return window * window_bytes + chunk % chunks_a_position * CHUNK;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_forward(
    const u8* images, const long long* order, const float* weight1, const float* bias1, const u16* weight2,
    const float* bias2, const long long* seeds, u16* pooled, u8* winner, int samples, int step) {
    extern __shared__ __align__(128) char shared[];
    Forward& all = *(Forward*)shared;
    const int part = uniform(threadIdx.x / WARPGROUP), thread = threadIdx.x % WARPGROUP;
    const int warp = thread / WARP, g = thread % WARP / 4, t = thread % 4;
    Third& my = all.third[part];
    auto fetch_part = [&](long long image) {
        return fetch(images + image * IMAGE + part * PART_ROWS * IMAGE_SIDE, SEEN_WORDS, part == PARTS - 1);
    };

    // Which image is next is read one sample before its bytes are: no thread waits for the one to read the other.
    int sample = blockIdx.x;
    auto image_of = [&](int sample) { return order[min(sample, samples - 1)]; };
    const long long first = image_of(sample);
    long long next = image_of(sample + gridDim.x);
#pragma unroll
    for (int i = threadIdx.x; i < INPUTS / 8 * CHANNELS2; i += THREADS) {  // eight threads' rows meet all banks
        const int row = i % 8 + i / (8 * (INPUTS / 8)) * 8, eight = i / 8 % (INPUTS / 8);
        cp_async(all.weight + (eight * CHANNELS2 + row) * CHUNK, weight2 + channel_of_row(row) * INPUTS + 8 * eight);
    }
    cp_async_commit();
    Bytes bytes = fetch_part(first);
    load_conv1(all.conv1, weight1, bias1);
    const int channel = 16 * warp + 2 * g;  // out of conv2: this one and the next are this thread's
    const float bias[2] = {bias2[channel], bias2[channel + 1]};
#if DROPOUT
    const u64 seed = (u64)seeds[step];
#endif
    cp_async_wait_all();
    fence_proxy_async();
    __syncthreads();

    if (part == PARTS - 1) named_barrier_arrive(TURN, 2 * WARPGROUP);
    const u64 left = descriptor(shared_address(all.weight), CHANNELS2 * CHUNK, CORE_MATRIX);
    const u64 right = descriptor(shared_address(my.hidden), PLANE * CHUNK, CORE_MATRIX);
    for (; sample < samples; sample += gridDim.x) {
        put_pairs(my.pairs, bytes, SEEN_WORDS);
        named_barrier(MINE + part, WARPGROUP);

        // conv1. Pixel p of a parity lies in row r = p / 26 of it and in the image's row 2r + odd, column p - 26r.
        auto corner = [](int pixel, int odd) {
            const int inside = min(pixel, PARITY - 1);
            return inside + (2 * IMAGE_SIDE - SIDE) * row_of(inside) + IMAGE_SIDE * odd;
        };
        u32 seen[WARP_TILES][4];
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) {
            const int tile = min(warp + 4 * i, TILES - 1), odd = tile >= PARITY_TILES;
            const int pixel = TILE_PIXELS * (tile - PARITY_TILES * odd) + g;
            see(seen[i], my.pairs, corner(pixel, odd), corner(pixel + 8, odd));
        }
        float found[WARP_TILES][16];
        hidden_pixels(found, seen, all.conv1);
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) {
            const int tile = min(warp + 4 * i, TILES - 1), odd = tile >= PARITY_TILES;
            const int pixel = TILE_PIXELS * (tile - PARITY_TILES * odd) + g;
#pragma unroll
            for (int k = 0; k < 8; k++)  // channels 8 (k / 2) + 2t and one more, of the one pixel and of the other
                *(u32*)(my.hidden + (k / 2 * PLANE + odd * ODD + pixel + k % 2 * 8) * CHUNK + 4 * t) =
                    pack_relu(found[i][2 * k], found[i][2 * k + 1]);
        }
        fence_proxy_async();
        named_barrier(MINE + part, WARPGROUP);
        if (sample + gridDim.x < samples) bytes = fetch_part(next);  // behind the fence, which waits for memory
        next = image_of(sample + 2 * gridDim.x);

        // conv2: 64 channels by the outputs in even rows, and by those in odd ones.
        float sums[2][OUTPUTS / 2];
        named_barrier(TURN + part, 2 * WARPGROUP);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            if (k == PIECES - LAST_PIECES) wgmma_commit();
            const int tap_row = k / 6, tap_column = k / 2 % 3, planes = k % 2 * 2;  // the first 16 channels, the last
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const int row = tap_row + odd, pixel = row % 2 * ODD + row / 2 * SIDE + tap_column;
                wgmma_64x104(sums[odd], left + k * 2 * CHANNELS2, right + pixel + planes * PLANE, k > 0);
            }
        }
        wgmma_commit();
#if DROPOUT
        const uint4 random = philox(seed, sample * PARTS + part, thread);
#endif
        wgmma_wait<1>();
        named_barrier_arrive(TURN + (part + 1) % PARTS, 2 * WARPGROUP);  // the next one's first follow this one's last
        wgmma_wait<0>();

        // The largest of two neighbouring outputs in an even row and the two below: a window.
#pragma unroll
        for (int j = 0; j < OUTPUTS / 8; j++) {
            float value[2];
            int which[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float one = sums[0][4 * j + 2 * h], two = sums[0][4 * j + 2 * h + 1];
                const float three = sums[1][4 * j + 2 * h], four = sums[1][4 * j + 2 * h + 1];
                const float upper = fmaxf(one, two), lower = fmaxf(three, four);
                which[h] = upper >= lower ? one < two : 2 + (three < four);
                value[h] = fmaxf(upper, lower) + bias[h];
                bool alive = value[h] > 0;
#if DROPOUT
                const int bit = 2 * (2 * j + h);  // out if both are zero: one time in four
                alive = alive && ((bit < 32 ? random.x : random.y) >> bit % 32 & 3);
                value[h] *= 1 / KEPT;
#endif
                value[h] = alive ? value[h] : 0.0f;
                which[h] = alive ? which[h] : NO_WINNER;
            }
            const int window = 4 * j + t;
            *(u32*)(my.pooled + window * POOLED_ROW + 2 * channel) = pack(value[0], value[1]);
            *(u16*)(my.winner + window * WINNER_ROW + channel) = which[0] | which[1] << 8;
        }
        named_barrier(MINE + part, WARPGROUP);
        const int position = sample * WINDOWS + part * POSITIONS;
        constexpr int POOLED_CHUNKS = CHANNELS2 * 2 / CHUNK, WINNER_CHUNKS = CHANNELS2 / CHUNK;  // of a position
#pragma unroll
        for (int i = thread; i < POSITIONS * POOLED_CHUNKS; i += WARPGROUP)
            ((uint4*)(pooled + position * CHANNELS2))[i] = *(uint4*)(my.pooled + staged(i, POOLED_CHUNKS, POOLED_ROW));
        for (int i = thread; i < POSITIONS * WINNER_CHUNKS; i += WARPGROUP)
            ((uint4*)(winner + position * CHANNELS2))[i] = *(uint4*)(my.winner + staged(i, WINNER_CHUNKS, WINNER_ROW));
    }
}
