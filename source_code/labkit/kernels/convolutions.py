"""The convolutions on Hopper, in CUDA C++: what ``hopper`` compiles. One kernel forward, one backward.

A sample's hidden layer, 26 x 26 pixels of 32 channels, never leaves shared memory. Each pixel's channels lie there in
groups of eight, 16 bytes: eight neighbouring pixels of a group are one core matrix of wgmma, and since no swizzle binds
a matrix to an address, each of the nine taps is the same matrix, begun a few pixels further on.

A warp waits while the Tensor Core takes its products. So four warps together, a group, do one thing after another, and
several groups on a multiprocessor keep the Tensor Core busy.
"""

COMMON = """
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define GROUP 128                    // threads of a group
#define SIDE 26                      // pixels of the hidden layer in a row
#define SCALE (1 / (255 * 0.3081f))  // a byte becomes a pixel: (byte / 255 - 0.1307) / 0.3081
#define SHIFT (-0.1307f / 0.3081f)

__device__ __forceinline__ u32 address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// Nothing of wgmma is known to the compiler's view of memory: what is written must be made visible to it.
__device__ __forceinline__ void written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Threads of one group, or of several, meet; or say that they have been there, and go on.
__device__ __forceinline__ void meet(int place, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(place), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive(int place, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(place), "r"(threads) : "memory");
}

// Where a matrix lies in shared memory: its beginning, and the bytes from one core matrix to the next, along the sum
// and along rows or columns (PTX ISA, "Matrix Descriptor").
__device__ __forceinline__ u64 matrix(u32 begin, u32 along_sum, u32 along_rows) {
    return (u64)((begin & 0x3FFFF) >> 4) | (u64)(along_sum >> 4) << 16 | (u64)(along_rows >> 4) << 32;
}

// Two numbers as BF16, the first in the lower half; below zero becomes zero in the second form.
__device__ __forceinline__ u32 narrow(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ u32 narrow_relu(float low, float high) {
    u32 both;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// PRODUCTS
// Four 8 x 8 matrices from shared memory, turned round: thread 4g + t gets row g, columns 2t and 2t + 1.
__device__ __forceinline__ void load_turned(u32 (&out)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at) : "memory");
}

// Sixteen bytes from memory into shared memory, on their own.
__device__ __forceinline__ void bring(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void bring_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void bring_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Rows of an image on their way: four bytes a thread, and the one behind them.
struct Bytes {
    u32 four, next;
};

__device__ __forceinline__ Bytes fetch(const u8* rows, int words, bool last) {
    const int word = threadIdx.x % GROUP;
    Bytes bytes = {0, 0};
    if (word < words) {
        bytes.four = ((const u32*)rows)[word];
        bytes.next = last && word == words - 1 ? 0 : rows[4 * word + 4];
    }
    return bytes;
}

// Each pixel with its right neighbour, as BF16: a whole number up to 255 is exact in it.
__device__ __forceinline__ void put_pairs(u32* pairs, Bytes bytes, int words) {
    const int word = threadIdx.x % GROUP;
    if (word >= words) return;
    u32 one[5];
#pragma unroll
    for (int k = 0; k < 4; k++) one[k] = __float_as_uint((float)(bytes.four >> 8 * k & 255));
    one[4] = __float_as_uint((float)bytes.next);
    ((uint4*)pairs)[word] = make_uint4(__byte_perm(one[0], one[1], 0x7632), __byte_perm(one[1], one[2], 0x7632),
        __byte_perm(one[2], one[3], 0x7632), __byte_perm(one[3], one[4], 0x7632));
}

// conv1's weights in shared memory, [8 of 16 numbers][channel][16 bytes]: 3 x 4 taps, the fourth of each row zero; the
// bias, with what the shift of all pixels adds to it, as a sum of two numbers in BF16; zeros.
__device__ __forceinline__ void load_conv1(u32* conv1, const float* weight, const float* bias) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        const int channel = i / 4 % 32, k = i / 128 * 8 + i % 4 * 2;
        float two[2] = {0, 0};
        if (k < 12)
            for (int c = 0; c < 2 - k / 2 % 2; c++) two[c] = weight[channel * 9 + k / 4 * 3 + k % 4 + c] * SCALE;
        if (k == 12) {
            float sum = 0;
            for (int tap = 0; tap < 9; tap++) sum += weight[channel * 9 + tap];
            sum = bias[channel] + SHIFT * sum;
            two[0] = __uint_as_float(narrow(sum, 0) << 16);
            two[1] = sum - two[0];
        }
        conv1[i] = narrow(two[0], two[1]);
    }
}

// What a thread needs of an image for 16 hidden pixels: `corner` is where the pixels g and g + 8 lie in `pairs`.
__device__ __forceinline__ void see(u32 (&seen)[4], const u32* pairs, int corner, int corner8) {
    const int t = threadIdx.x % 4, column = 2 * (t & 1), row = 28 * (t >> 1);
    const u32 ones = 0x3F803F80;  // by the bias
    seen[0] = pairs[corner + column + row];
    seen[1] = pairs[corner8 + column + row];
    seen[2] = row ? ones : pairs[corner + column + 56];
    seen[3] = row ? ones : pairs[corner8 + column + 56];
}

// conv1 for COUNT times 64 hidden pixels of a group: thread 4g + t of a warp gets channels 8n + 2t and 8n + 2t + 1 of
// its pixels g and g + 8, as sums 4n to 4n + 3.
template <int COUNT> __device__ __forceinline__ void hidden_pixels(
    float (&sums)[COUNT][16], const u32 (&seen)[COUNT][4], const u32* conv1) {
    const u64 taps = matrix(address(conv1), 32 * 16, 128);
    products_begin();
#pragma unroll
    for (int i = 0; i < COUNT; i++) multiply_32(sums[i], seen[i], taps, 0);
    products_end();
    products_wait<0>();
}

// Philox 4x32-10: 128 random bits of a counter and a key (Salmon et al., "Parallel random numbers", SC 2011).
__device__ __forceinline__ uint4 philox(u64 key, u32 c0, u32 c1) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32), c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

"""

FORWARD = """
// Forward: a group takes four rows of a sample's pooling windows, a block's three groups take all twelve.

#define THIRD 130      // hidden pixels that they need: five even rows, and five odd ones
#define ODD 144        // from an even row's pixel to the one below: whole tiles of 16
#define PLANE (2 * ODD)  // from one group of eight channels to the next
#define OUT_ROW 144    // bytes from one pooled position to the next on their way out: 64 channels, and some to spare
#define WIN_ROW 80

struct Third {
    char hidden[4 * PLANE * 16];  // [8 channels][even rows, odd rows]: two outputs of a window above each other
    u32 pairs[352];               // end up in one thread
    char pooled[49 * OUT_ROW];    // one position more, for what is no output
    u8 winner[49 * WIN_ROW];
};

struct Forward {
    char weight[36 * 64 * 16];  // conv2's: [8 numbers of 9 taps x 32 channels in][channel out][16 bytes]
    Third third[3];
    u32 conv1[256];
};

// Groups meet in themselves, and take turns at the Tensor Core: were they served at once, all would end at once, and it
// would idle while they finish.
enum ForwardMeeting { MINE = 1, TURN = MINE + 3 };

extern "C" __global__ void __launch_bounds__(3 * GROUP, 1) conv_forward(
    const u8* images, const long long* order, const float* weight1, const float* bias1, const u16* weight2,
    const float* bias2, const long long* seeds, u16* pooled, u8* winner, int samples, int step) {
    extern __shared__ __align__(128) char shared[];
    Forward& all = *(Forward*)shared;
    const int part = threadIdx.x / GROUP, thread = threadIdx.x % GROUP;
    const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    Third& my = all.third[part];

    int sample = blockIdx.x;
    Bytes bytes = fetch(images + order[sample] * 784 + part * 224, 84, part == 2);
    for (int i = threadIdx.x; i < 36 * 64; i += 3 * GROUP)
        bring(all.weight + (i % 36 * 64 + i / 36) * 16, weight2 + 8 * i);
    bring_end();
    load_conv1(all.conv1, weight1, bias1);
    const float bias[2] = {bias2[16 * warp + g], bias2[16 * warp + g + 8]};
#if DROPOUT
    const u64 seed = (u64)seeds[step];
#endif
    bring_wait();
    written();
    __syncthreads();

    if (part == 2) arrive(TURN, 2 * GROUP);
    const u64 left = matrix(address(all.weight), 64 * 16, 128), right = matrix(address(my.hidden), PLANE * 16, 128);
    for (; sample < samples; sample += gridDim.x) {
        put_pairs(my.pairs, bytes, 84);
        if (sample + gridDim.x < samples)
            bytes = fetch(images + order[sample + gridDim.x] * 784 + part * 224, 84, part == 2);
        meet(MINE + part, GROUP);
        u32 seen[5][4];  // 18 times 16 pixels, by four warps: two take the last once more
#pragma unroll
        for (int i = 0; i < 5; i++) {
            const int tile = min(warp + 4 * i, 17), odd = tile >= 9, pixel = 16 * (tile - 9 * odd) + g;
            const int one = min(pixel, THIRD - 1), two = min(pixel + 8, THIRD - 1);  // (2 row + odd) 28 + q - 26 row
            see(seen[i], my.pairs, one + 30 * (one * 2521 >> 16) + 28 * odd, two + 30 * (two * 2521 >> 16) + 28 * odd);
        }
        float found[5][16];
        hidden_pixels(found, seen, all.conv1);
#pragma unroll
        for (int i = 0; i < 5; i++) {
            const int tile = min(warp + 4 * i, 17), odd = tile >= 9, pixel = 16 * (tile - 9 * odd) + g;
#pragma unroll
            for (int k = 0; k < 8; k++)  // channels 8 (k / 2) + 2t and one more, of the one pixel and of the other
                *(u32*)(my.hidden + (k / 2 * PLANE + odd * ODD + pixel + k % 2 * 8) * 16 + 4 * t) =
                    narrow_relu(found[i][2 * k], found[i][2 * k + 1]);
        }
        written();
        meet(MINE + part, GROUP);

        float sums[2][52];  // 64 channels by the outputs in even rows, and by those in odd ones
        meet(TURN + part, 2 * GROUP);
        products_begin();
#pragma unroll
        for (int k = 0; k < 18; k++) {
            if (k == 16) products_end();
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const int row = k / 6 + odd, pixel = row % 2 * ODD + row / 2 * SIDE + k / 2 % 3;
                multiply_104(sums[odd], left + k * 2 * 64, right + pixel + k % 2 * 2 * PLANE, k > 0);
            }
        }
        products_end();
#if DROPOUT
        const uint4 random = philox(seed, sample * 3 + part, thread);
#endif
        products_wait<1>();
        arrive(TURN + (part + 1) % 3, 2 * GROUP);  // the next group's first products follow this one's last
        products_wait<0>();

#pragma unroll
        for (int j = 0; j < 13; j++) {
            const int window = 4 * j + t, row = window * 79 >> 10, at = window - 13 * row < 12 ? window - row : 48;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float one = sums[0][4 * j + 2 * h], two = sums[0][4 * j + 2 * h + 1];
                const float three = sums[1][4 * j + 2 * h], four = sums[1][4 * j + 2 * h + 1];
                const float upper = fmaxf(one, two), lower = fmaxf(three, four);
                const int which = upper >= lower ? one < two : 2 + (three < four);
                float value = fmaxf(upper, lower) + bias[h];
                bool alive = value > 0;
#if DROPOUT
                const int bit = 2 * (2 * j + h);
                alive = alive && ((bit < 32 ? random.x : random.y) >> bit % 32 & 3);
                value *= 1 / 0.75f;
#endif
                const int channel = 16 * warp + g + 8 * h;
                *(u16*)(my.pooled + at * OUT_ROW + 2 * channel) = (u16)narrow(alive ? value : 0.0f, 0.0f);
                my.winner[at * WIN_ROW + channel] = alive ? which : 4;
            }
        }
        meet(MINE + part, GROUP);
        const int position = sample * 144 + part * 48;
#pragma unroll
        for (int i = thread; i < 384; i += GROUP)
            ((uint4*)(pooled + position * 64))[i] = *(uint4*)(my.pooled + i / 8 * OUT_ROW + i % 8 * 16);
        for (int i = thread; i < 192; i += GROUP)
            ((uint4*)(winner + position * 64))[i] = *(uint4*)(my.winner + i / 4 * WIN_ROW + i % 4 * 16);
    }
}

"""

BACKWARD = """
// Backward: half a sample at a time. One group of threads makes its hidden pixels and its gradients ready, one takes
// the products for conv2's weights, and two, in turn, those for the hidden layer's gradient, which conv1's weights
// need.

#define BACK_ODD (8 * SIDE)              // from an even row's pixel to the one below
#define BACK_PLANE (9 + 2 * BACK_ODD)    // from one group of eight channels to the next: room to the left, and odd,
                                         // so that groups begin in different banks
#define LINE (SIDE * 16)                 // bytes of a row's pixels in one group of channels
#define WEIGHTS (4 * 4 * 64)              // of a column of taps: zeros and its three rows, by 8 channels
#define THREADS (4 * GROUP)

struct Half {
    char back[8 * BACK_PLANE * 16];  // gradient of conv2's output: [8 channels][even rows, odd rows][16 bytes]
    char hidden[15 * 4 * LINE];      // [row][8 channels][pixel][16 bytes], and a row to spare
    u32 pairs[512];
    char bytes[2 * 192 * 16];        // [8 of 16][pixel][16 bytes]: an image's bytes under a pixel's 4 x 3 taps, and 1
};

struct Backward {
    Half half[2];
    char weight[(3 * WEIGHTS + 256) * 16];  // [column, zeros or a row of taps, 8 channels in][channel out][16 bytes]
    u32 conv1[256];
};

// Where threads meet: a half's gradients are there, all of it is, it may be filled again, its image's bytes are laid
// out; and its makers, in between.
enum BackwardMeeting { BACK = 1, FULL = BACK + 2, EMPTY = FULL + 2, MADE = EMPTY + 2, MAKERS = MADE + 2 };

// What a thread of the first group brings for half a sample: seven rows of pooling windows.
struct Windows {
    uint4 value[6];
    uint2 which[6];
    Bytes bytes;
};

__device__ __forceinline__ void bring_windows(
    Windows& mine, const u8* image, const u16* upstream, const u8* winner, int sample, int half) {
    const int thread = threadIdx.x % GROUP, at = (sample * 144 + half * 60) * 8 + thread;
#pragma unroll
    for (int i = 0; i < 6; i++)
        if (thread / 8 + 16 * i < 84) {
            mine.value[i] = ((const uint4*)upstream)[at + GROUP * i];
            mine.which[i] = ((const uint2*)winner)[at + GROUP * i];
        }
    mine.bytes = fetch(image + half * 336, 112, half == 1);
}

// Each window's gradient goes to the one of its four outputs that won.
__device__ __forceinline__ void spread(char* back, const Windows& mine, int half, float (&bias)[8]) {
    const int thread = threadIdx.x % GROUP, group = thread % 8;
#pragma unroll
    for (int i = 0; i < 6; i++) {
        const int window = thread / 8 + 16 * i, row = window / 12;
        if (window >= 84) break;
        const uint4 value = mine.value[i];
        const uint2 which = mine.which[i];
        char* const to = back + (group * BACK_PLANE + 8 + (row + 1 - half) * SIDE + 2 * (window - 12 * row)) * 16;
        uint4 any = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int place = 0; place < 4; place++) {
            // Bytes of up to seven: eight less one of them has bit 3 set where it is zero.
            const u32 first = ((0x08080808u - (which.x ^ place * 0x01010101u)) >> 3 & 0x01010101u) * 255;
            const u32 last = ((0x08080808u - (which.y ^ place * 0x01010101u)) >> 3 & 0x01010101u) * 255;
            const uint4 out = make_uint4(
                value.x & __byte_perm(first, 0, 0x1100), value.y & __byte_perm(first, 0, 0x3322),
                value.z & __byte_perm(last, 0, 0x1100), value.w & __byte_perm(last, 0, 0x3322));
            *(uint4*)(to + (place / 2 * BACK_ODD + place % 2) * 16) = out;
            any = make_uint4(any.x | out.x, any.y | out.y, any.z | out.z, any.w | out.w);
        }
        const u32 ours = row == (half ? 0 : 6) ? 0 : ~0u;  // or the other half's
        const u32 words[4] = {any.x & ours, any.y & ours, any.z & ours, any.w & ours};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            bias[2 * c] += __uint_as_float(words[c] << 16);
            bias[2 * c + 1] += __uint_as_float(words[c] & 0xFFFF0000u);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_backward(
    const u8* images, const long long* order, const float* weight1, const float* bias1, const u16* weight2,
    const u16* upstream, const u8* winner, float* weight2_gradient, float* bias2_gradient, float* weight1_gradient,
    float* bias1_gradient, int samples, float scale) {
    extern __shared__ __align__(128) char shared[];
    Backward& all = *(Backward*)shared;
    const int role = threadIdx.x / GROUP, thread = threadIdx.x % GROUP;
    const int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;

    for (int i = threadIdx.x; i < 2 * sizeof(Half) / 16; i += THREADS) ((uint4*)all.half)[i] = make_uint4(0, 0, 0, 0);
    for (int i = threadIdx.x; i < 3 * WEIGHTS + 256; i += THREADS) {
        const int group = i % 4, out = i / 4 % 64, row = i / 256 % 4 - 1, column = i / WEIGHTS;
        uint4* const to = (uint4*)all.weight + (i / 256 * 4 + group) * 64 + out;
        if (row < 0)
            *to = make_uint4(0, 0, 0, 0);
        else
            bring(to, weight2 + out * 288 + (row * 3 + column) * 32 + 8 * group);
    }
    bring_end();
    load_conv1(all.conv1, weight1, bias1);
    bring_wait();
    written();
    __syncthreads();

    if (role == 0) {
        // conv2's weights: the gradient's 64 channels by three rows of taps of the hidden layer's 32, over pixels.
        asm volatile("setmaxnreg.inc.sync.aligned.u32 200;");
        float sums[3][48];
#pragma unroll
        for (int i = 0; i < 3; i++)
#pragma unroll
            for (int k = 0; k < 48; k++) sums[i][k] = 0;
        const bool behind = lane >= 16;
        const int places[3] = {behind ? 8 : 0, behind ? BACK_ODD : 16, behind ? BACK_ODD + 16 : BACK_ODD + 8};
        for (int sample = blockIdx.x; sample < samples; sample += gridDim.x)
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                Half& my = all.half[half];
                const u32 from = address(my.back) + ((2 * warp + lane / 8 % 2) * BACK_PLANE + 8 + SIDE + lane % 8) * 16;
                const u64 right = matrix(address(my.hidden), 128, LINE);
                const u64 over = (u64)((4 * SIDE - 16 - 8) * 16 >> 4) << 16;  // where 16 pixels lie in two rows
                meet(FULL + half, 3 * GROUP);
                u32 a[2][3][4];
#pragma unroll
                for (int k = 0; k < 3; k++) load_turned(a[0][k], from + places[k] * 16);
#pragma unroll
                for (int row = 0; row < 6; row++) {
                    products_begin();
#pragma unroll
                    for (int k = 0; k < 3; k++)
#pragma unroll
                        for (int column = 0; column < 3; column++) {
                            const int pixel = k == 0 ? 0 : k == 1 ? 16 : 4 * SIDE + 8;
                            multiply_turned_96(sums[column], a[row % 2][k],
                                right + (k == 1 ? over : 0) + row * 8 * SIDE + pixel + column, 1);
                        }
                    products_end();
                    products_wait<1>();  // the row before: what it had read may be read anew
                    if (row < 5)
#pragma unroll
                        for (int k = 0; k < 3; k++)
                            load_turned(a[1 - row % 2][k], from + ((row + 1) * SIDE + places[k]) * 16);
                }
                products_wait<0>();
                arrive(EMPTY + half, 3 * GROUP);
            }
        __syncthreads();
        float* const out = (float*)all.half;
#pragma unroll
        for (int column = 0; column < 3; column++)
#pragma unroll
            for (int k = 0; k < 24; k++) {
                const int channel = 16 * warp + g + k % 2 * 8, j = k / 2;
                *(float2*)(out + channel * 288 + (j / 4 * 3 + column) * 32 + j % 4 * 8 + 2 * t) =
                    make_float2(sums[column][2 * k] * scale, sums[column][2 * k + 1] * scale);
            }
    } else if (role < 3) {
        // The hidden layer's gradient: of two rows of 32 channels at once, by pixels. Then ReLU's, and out of registers
        // into the product with the image's bytes: nine taps, and a column of ones for the bias.
        asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
        const int half = role - 1, odd = warp / 2, group = warp % 2 * 2;
        Half& my = all.half[half];
        float sums1[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const u64 left = matrix(address(all.weight), 128, 64 * 16);
        const u64 right = matrix(address(my.back) + 8 * 16, BACK_PLANE * 16, 128);
        const u32 hidden = address(my.hidden) + (odd * 4 + group + lane / 8 % 2) * LINE;
        const u64 bytes = matrix(address(my.bytes), 128, 192 * 16);
        for (int sample = blockIdx.x; sample < samples; sample += gridDim.x) {
#pragma unroll 1
            for (int part = 0; part < 2; part++) {
                float sums[48];
                if (part == 0) meet(BACK + half, 2 * GROUP);
                products_begin();
#pragma unroll
                for (int k = 0; k < 48; k++) {
                    const int row = k / 12, column = k / 4 % 3, deep = k % 4;
                    multiply_96(sums, left + column * WEIGHTS + (3 - row) * 256 + deep * 16,
                        right + 96 * part + row % 2 * BACK_ODD + row / 2 * SIDE - column + deep * 2 * BACK_PLANE,
                        k > 0);
                }
                products_end();

                // Meanwhile: the image's bytes as the right side of a product, and which pixels ReLU let through, a bit
                // each.
                if (part == 0) {
                    meet(FULL + half, 3 * GROUP);
#pragma unroll
                    for (int i = thread; i < 2 * 192; i += GROUP) {
                        const int pixel = i % 192;
                        const u32* corner = my.pairs + pixel + 30 * (pixel * 2521 >> 16);
                        ((uint4*)my.bytes)[i] =
                            i < 192 ? make_uint4(
                                          corner[0], __byte_perm(corner[2], corner[28], 0x5410), corner[29], corner[56])
                                    : make_uint4(__byte_perm(corner[58], corner[84], 0x5410), corner[85], 0x3F80, 0);
                    }
                    written();
                    meet(MADE + half, GROUP);
                }
                u32 alive[6];
#pragma unroll
                for (int j = 0; j < 6; j++) {
                    const int mine = 96 * part + 16 * j + lane % 8 + lane / 16 * 8, line = mine * 2521 >> 16;
                    u32 seen[4];
                    load_turned(seen, hidden + mine * 16 + line * (8 * LINE - SIDE * 16));
                    alive[j] = 0;
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const int pixel = 96 * part + 16 * j + 8 * h + 2 * t;
                        const u32 ours = pixel < 7 * SIDE && (half == 0 || pixel >= SIDE) ? ~0u : 0;
#pragma unroll
                        for (int k = 0; k < 2; k++) {
                            const u32 two = seen[2 * h + k] & ours;  // what ReLU let through is not zero
                            alive[j] |= (min(two & 0xFFFF, 1u) | min(two >> 16, 1u) << 1) << (4 * h + 2 * k);
                        }
                    }
                }
                products_wait<0>();
                u32 a[6][4];
#pragma unroll
                for (int j = 0; j < 6; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        a[j][i] = narrow(alive[j] >> 2 * i & 1 ? sums[8 * j + 2 * i] : 0.0f,
                            alive[j] >> 2 * i & 2 ? sums[8 * j + 2 * i + 1] : 0.0f);
                products_begin();
#pragma unroll
                for (int j = 0; j < 6; j++) multiply_turned_16(sums1, a[j], bytes + 96 * part + 16 * j, 1);
                products_end();
                products_wait<0>();
            }
            arrive(EMPTY + half, 3 * GROUP);
        }
        // Columns are the taps of two rows, 4 x 3, of which either has nine; the thirteenth is the sum of all, the
        // bias's. Pixels are normalised only now: the sum is linear in the bytes.
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int channel = group * 8 + g + 8 * h;
            const float ones = __shfl_sync(~0u, sums1[4 + 2 * h], lane & ~3 | 2) * scale;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int tap = k / 2 * 8 + 2 * t + k % 2 - 3 * odd;
                if (tap >= 0 && tap < 9)
                    atomicAdd(weight1_gradient + channel * 9 + tap,
                        sums1[k / 2 * 4 + 2 * h + k % 2] * scale * SCALE + SHIFT * ones);
            }
            if (t == 0) atomicAdd(bias1_gradient + channel, ones);
        }
        __syncthreads();
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 104;");
        float bias[8] = {0, 0, 0, 0, 0, 0, 0, 0};  // conv2's: of this thread's eight channels
        Windows mine;
        const u8 *image = images + order[blockIdx.x] * 784, *coming = image;
        bring_windows(mine, image, upstream, winner, blockIdx.x, 0);
        for (int sample = blockIdx.x; sample < samples; sample += gridDim.x)
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                Half& my = all.half[half];
                const int next = sample + half * gridDim.x;
                if (half == 0 && sample + gridDim.x < samples) coming = images + order[sample + gridDim.x] * 784;
                if (sample != blockIdx.x) meet(EMPTY + half, 3 * GROUP);
                put_pairs(my.pairs, mine.bytes, 112);
                spread(my.back, mine, half, bias);
                written();
                arrive(BACK + half, 2 * GROUP);
                meet(MAKERS, GROUP);
                if (half) image = coming;
                if (next < samples) bring_windows(mine, image, upstream, winner, next, 1 - half);
#pragma unroll 1
                for (int first = warp, turn = 0; turn < 3; first += 8, turn++) {  // 23 times 16 pixels, two a warp
                    u32 seen[2][4];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int pixel = 16 * min(first + 4 * i, 22) + g;
                        const int one = min(pixel, 14 * SIDE - 1), two = min(pixel + 8, 14 * SIDE - 1);
                        see(seen[i], my.pairs, one + 2 * (one * 2521 >> 16), two + 2 * (two * 2521 >> 16));
                    }
                    float found[2][16];
                    hidden_pixels(found, seen, all.conv1);
#pragma unroll
                    for (int i = 0; i < 2; i++)
#pragma unroll
                        for (int k = 0; k < 8; k++) {
                            const int pixel = 16 * min(first + 4 * i, 22) + k % 2 * 8 + g, row = pixel * 2521 >> 16;
                            *(u32*)(my.hidden + pixel * 16 + (row * 3 + k / 2) * LINE + 4 * t) =
                                narrow_relu(found[i][2 * k], found[i][2 * k + 1]);
                        }
                }
                written();
                arrive(FULL + half, 3 * GROUP);
            }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            bias[i] += __shfl_xor_sync(~0u, bias[i], 8);
            bias[i] += __shfl_xor_sync(~0u, bias[i], 16);
            if (lane < 8) atomicAdd(bias2_gradient + 8 * lane + i, bias[i] * scale);
        }
        __syncthreads();
    }

    // What this block has summed for conv2's weights is added to memory, by each block from another place on.
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 288 / 4; i += THREADS) {
        const int at = (i + blockIdx.x * 37) % (64 * 288 / 4);
        const float4 four = ((const float4*)all.half)[at];
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(weight2_gradient + 4 * at), "f"(four.x),
            "f"(four.y), "f"(four.z), "f"(four.w) : "memory");
    }
}
"""
