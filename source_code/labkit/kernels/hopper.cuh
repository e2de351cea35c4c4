// What the two kernels of main_opt8 share: how a sample lies in shared memory, the shapes of wgmma, conv1, Philox.
//
// Forward and backward, a sample's hidden layer, 26 x 26 pixels of 32 channels, never leaves shared memory. A pixel's
// channels lie there in groups of eight, 16 bytes, each group in a plane of its own: eight neighbouring pixels of a
// plane are one core matrix of wgmma, 128 bytes. Without a swizzle, which counts rows from fixed addresses, a matrix
// may begin at any pixel; so each of the nine taps is the same matrix, begun a few pixels further on.
//
// A warpgroup overlaps little with its own products; several on a multiprocessor keep the Tensor Cores busy.
//
// hopper.py hands over with -D: MEAN and STD of the pixels, KEPT of dropout1, and whether there is DROPOUT.
#pragma once
#include "rungs/ptx.cuh"

typedef unsigned char u8;
typedef unsigned short u16;

constexpr int IMAGE_SIDE = 28, IMAGE = IMAGE_SIDE * IMAGE_SIDE;  // pixels, a byte each
constexpr int SIDE = 26;                                         // pixels of the hidden layer in a row
constexpr int TAPS = 9;
constexpr int CHANNELS1 = 32, CHANNELS2 = 64;  // out of conv1 and conv2
constexpr int INPUTS = TAPS * CHANNELS1;       // of one output of conv2
constexpr int WINDOWS_SIDE = 12, WINDOWS = WINDOWS_SIDE * WINDOWS_SIDE;  // that conv2's output is pooled by
constexpr int NO_WINNER = 4;             // of a window that ReLU or dropout put out; else 0 to 3
constexpr int CHUNK = 16;                // bytes: eight BF16 numbers, a row of a core matrix
constexpr int CORE_MATRIX = 8 * CHUNK;   // bytes of eight rows below each other
constexpr u32 BF16_ONE = 0x3F80, BF16_ONES = 0x3F803F80;
constexpr u32 HIGH_HALVES = 0x7632;      // for __byte_perm: the upper 16 bits of the first word, then of the second
constexpr u32 LOW_HALVES = 0x5410;       // and the lower ones
constexpr int CONV1_WORDS = 16 * CHANNELS1 / 2;  // conv1's weights in shared memory, two numbers each

// A byte becomes a pixel, (byte / 255 - MEAN) / STD, by one multiplication and one addition.
constexpr float SCALE = 1 / (255 * STD), SHIFT = -MEAN / STD;

// Divisions by a row's length, as a multiplication and a shift; exact for all that the kernels ask.
PTX int row_of(int pixel) { return pixel * 2521 >> 16; }  // pixel / SIDE, below 6,577

// ---- PTX that rungs/ptx.cuh has not ----

PTX void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }  // this thread's copies are there
PTX void named_barrier_arrive(int number, int threads) {  // and go on; others wait in named_barrier
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Each byte of the result is 255 where the byte of `bytes` that its hexadecimal digit names is negative, else 0.
template <u32 BYTES> PTX u32 signs(u32 bytes) {
    constexpr u32 SIGN = 0x8888;
    u32 masks;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(masks) : "r"(bytes), "n"(BYTES | SIGN));
    return masks;
}
// Two numbers as BF16, as `pack`; what is below zero becomes zero.
PTX u32 pack_relu(float low, float high) {
    u32 both;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
// Of two BF16 numbers, 0xFFFF in the place of each that is above zero.
PTX u32 positive(u32 two) {
    u32 masks;
    asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(masks) : "r"(two), "r"(0));
    return masks;
}
// What is the same in a warp's lanes, so that the compiler knows: what follows from it, as wgmma's descriptors and the
// numbers of named barriers, is computed once a warp, in uniform registers.
PTX int uniform(int number) { return __shfl_sync(~0u, number, 0); }
// As `ldmatrix`, each matrix transposed: lane 4g + t gets 2t and 2t + 1 of column g.
PTX void ldmatrix_trans(u32 (&out)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at) : "memory");
}
// Four sums added to four numbers in global memory, which other blocks add to as well.
PTX void red_add(float* to, float4 sum) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(sum.x), "f"(sum.y), "f"(sum.z),
        "f"(sum.w) : "memory");
}

// The matrix descriptor without a swizzle: where the matrix begins, and the bytes from one core matrix to the next,
// along the sum (leading dimension byte offset, LBO) and along rows or columns (stride byte offset, SBO).
PTX u64 descriptor(u32 begin, u32 lbo, u32 sbo) {
    return (u64)((begin & 0x3FFFF) >> 4) | (u64)(lbo >> 4) << 16 | (u64)(sbo >> 4) << 32;
}

// wgmma: 64 rows by so many columns, over 16 numbers. Thread 32w + 4g + t of the warpgroup holds, as in ptx.cuh, in
// sum[4j], sum[4j + 1] row 16w + g, columns 8j + 2t and 8j + 2t + 1, in the next two row 16w + g + 8. A lies in
// shared memory or in registers (reg_a), B in shared memory; of a transposed one (trans) the numbers that lie side by
// side are not the sum's. The names of registers are spelled out: an instruction lists each.
#define SUMS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SUMS_16 SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_40                                                                                         \
    SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "        \
            "%32, %33, %34, %35, %36, %37, %38, %39"
#define SUMS_48 SUMS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_52 SUMS_48 ", %48, %49, %50, %51"
#define WGMMA(columns, add, sums, a_and_b, transposed)                                                  \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned.m64n" columns              \
    "k16.f32.bf16.bf16 {" sums "}, " a_and_b ", p, 1, 1, " transposed "; }"
#define REGISTERS(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

PTX void wgmma_64x104_reg_a(float (&sum)[52], const u32 (&a)[4], u64 b, int add) {
    asm volatile(WGMMA("104", "%57", SUMS_52, "{%52, %53, %54, %55}, %56", "0")
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), FOUR(48) : REGISTERS(a), "l"(b), "r"(add));
}
PTX void wgmma_64x96_trans_a(float (&sum)[48], u64 a, u64 b, int add) {
    asm volatile(WGMMA("96", "%50", SUMS_48, "%48, %49", "1, 0")
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32) : "l"(a), "l"(b), "r"(add));
}
PTX void wgmma_64x80_trans_a(float (&sum)[40], u64 a, u64 b, int add) {
    asm volatile(WGMMA("80", "%42", SUMS_40, "%40, %41", "1, 0")
        : SIXTEEN(0), SIXTEEN(16), FOUR(32), FOUR(36) : "l"(a), "l"(b), "r"(add));
}
PTX void wgmma_64x32_reg_a(float (&sum)[16], const u32 (&a)[4], u64 b, int add) {
    asm volatile(WGMMA("32", "%21", SUMS_16, "{%16, %17, %18, %19}, %20", "0")
        : SIXTEEN(0) : REGISTERS(a), "l"(b), "r"(add));
}
PTX void wgmma_64x16_reg_a_trans_b(float (&sum)[8], const u32 (&a)[4], u64 b, int add) {
    asm volatile(WGMMA("16", "%13", SUMS_8, "{%8, %9, %10, %11}, %12", "1")
        : FOUR(0), FOUR(4) : REGISTERS(a), "l"(b), "r"(add));
}

// wgmma.sp: 32 numbers in the time of 16, where two of each four neighbours in a row of A are zero (2:4 sparsity). A
// is compressed, 64 x 16, and lies in registers as any A: two of its numbers stand for four. The metadata say for
// which, two bits a number, the smaller place first. Thread 4g of a warp holds them for the first 16 of the 32, thread
// 4g + 1 for the others: row g in the lower half, g + 8 in the upper. Sparsity selector 0: the other two are not asked.
PTX void wgmma_sp_64x96_reg_a_trans_b(float (&sum)[48], const u32 (&a)[4], u32 metadata, u64 b) {
    asm volatile("wgmma.mma_async.sp.sync.aligned.m64n96k32.f32.bf16.bf16 {" SUMS_48 "}, {%48, %49, %50, %51}, %52, "
        "%53, 0, 1, 1, 1, 1;"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32) : REGISTERS(a), "l"(b), "r"(metadata));
}

// ---- conv1 ----

// Rows of an image on their way into shared memory: four bytes a thread, and the one behind them.
struct Bytes {
    u32 four, next;
};

PTX Bytes fetch(const u8* rows, int words, bool last) {
    const int word = threadIdx.x % WARPGROUP;
    Bytes bytes = {0, 0};
    if (word < words) {
        bytes.four = ((const u32*)rows)[word];
        bytes.next = last && word == words - 1 ? 0 : rows[4 * word + 4];
    }
    return bytes;
}

// Each pixel with its right neighbour, as BF16: a whole number up to 255 is exact in it.
PTX void put_pairs(u32* pairs, Bytes bytes, int words) {
    const int word = threadIdx.x % WARPGROUP;
    if (word >= words) return;
    u32 one[5];
#pragma unroll
    for (int k = 0; k < 4; k++) one[k] = __float_as_uint((float)(bytes.four >> 8 * k & 255));
    one[4] = __float_as_uint((float)bytes.next);
    ((uint4*)pairs)[word] =
        make_uint4(__byte_perm(one[0], one[1], HIGH_HALVES), __byte_perm(one[1], one[2], HIGH_HALVES),
            __byte_perm(one[2], one[3], HIGH_HALVES), __byte_perm(one[3], one[4], HIGH_HALVES));
}

// conv1's weights in shared memory, [8 of 16 numbers][channel][16 bytes]: 3 x 4 taps, the fourth of each row zero; the
// bias, with what the shift of all pixels adds to it, as a sum of two numbers in BF16; zeros. By the first `threads`.
PTX void load_conv1(u32* conv1, const float* weight, const float* bias, int threads) {
    for (int i = threadIdx.x; i < CONV1_WORDS; i += threads) {
        const int channel = i / 4 % CHANNELS1, k = i / (4 * CHANNELS1) * 8 + i % 4 * 2;
        float two[2] = {0, 0};
#pragma unroll
        for (int c = 0; c < 2; c++)
            if (k < 12 && k % 4 + c < 3) two[c] = weight[channel * TAPS + k / 4 * 3 + k % 4 + c] * SCALE;
        if (k == 12) {
            float sum = 0;
            for (int tap = 0; tap < TAPS; tap++) sum += weight[channel * TAPS + tap];
            sum = bias[channel] + SHIFT * sum;
            two[0] = __uint_as_float(pack(sum, 0) << 16);
            two[1] = sum - two[0];
        }
        conv1[i] = pack(two[0], two[1]);
    }
}

// What a thread needs of an image for 16 hidden pixels: `corner` is where the pixels g and g + 8 lie in `pairs`.
PTX void see(u32 (&seen)[4], const u32* pairs, int corner, int corner8) {
    const int t = threadIdx.x % 4, column = 2 * (t & 1), row = IMAGE_SIDE * (t >> 1);
    seen[0] = pairs[corner + column + row];
    seen[1] = pairs[corner8 + column + row];
    seen[2] = row ? BF16_ONES : pairs[corner + column + 2 * IMAGE_SIDE];  // ones by the bias
    seen[3] = row ? BF16_ONES : pairs[corner8 + column + 2 * IMAGE_SIDE];
}

// conv1 for COUNT times 64 hidden pixels of a warpgroup: thread 4g + t of a warp gets channels 8n + 2t and 8n + 2t + 1
// of its pixels g and g + 8, as sums 4n to 4n + 3.
template <int COUNT> PTX void hidden_pixels(float (&sums)[COUNT][16], const u32 (&seen)[COUNT][4], const u32* conv1) {
    const u64 taps = descriptor(shared_address(conv1), CHANNELS1 * CHUNK, CORE_MATRIX);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < COUNT; i++) wgmma_64x32_reg_a(sums[i], seen[i], taps, 0);
    wgmma_commit();
    wgmma_wait<0>();
}

// ---- dropout ----

// Philox 4x32-10: 128 random bits of a counter and a key (Salmon et al., "Parallel random numbers", SC 2011).
PTX uint4 philox(u64 key, u32 c0, u32 c1) {
    constexpr u32 MULTIPLIER0 = 0xD2511F53, MULTIPLIER1 = 0xCD9E8D57, KEY_STEP0 = 0x9E3779B9, KEY_STEP1 = 0xBB67AE85;
    u32 k0 = (u32)key, k1 = (u32)(key >> 32), c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 high0 = __umulhi(MULTIPLIER0, c0), low0 = MULTIPLIER0 * c0;
        const u32 high1 = __umulhi(MULTIPLIER1, c2), low1 = MULTIPLIER1 * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += KEY_STEP0;
        k1 += KEY_STEP1;
    }
    return make_uint4(c0, c1, c2, c3);
}
