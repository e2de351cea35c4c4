// Stands in for CUDA where there is no GPU: a kernel of labkit.kernels.wmma runs on the CPU, block by block, a thread
// of the operating system for each of CUDA's. Numbers are 16-bit integers, so that every sum is exact.
//
//   c++ -std=c++20 -fsanitize=address -pthread -DKERNEL=tiled -DNUMBER=short -DSHARED_BYTES=… …
//   ./program ROWS COLUMNS INNER ACROSS DOWN THREADS < A and B > C
//
// Stricter than a GPU: what is misaligned ends the program, a copy that goes on by itself arrives when it is waited for
// and not before, a warp of which not all threads make a call never goes on, and the address sanitizer sees who reads
// or writes beyond a matrix, or beyond shared memory.
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#define __align__(bytes) __attribute__((aligned(bytes)))
#define __global__
#define __device__
#define __launch_bounds__(threads)

struct Index {
    int x, y;
};
inline thread_local Index threadIdx, blockIdx;
inline Index blockDim;

struct alignas(16) float4 {
    float x, y, z, w;
};
#ifdef SHARED_BYTES
alignas(128) float4 memory[SHARED_BYTES / 16];
#endif

inline std::unique_ptr<std::barrier<>> all;
inline std::vector<std::unique_ptr<std::barrier<>>> warps;

inline void __syncthreads() { all->arrive_and_wait(); }
inline void __syncwarp() { warps[threadIdx.x / 32]->arrive_and_wait(); }

inline void need(bool held, const char* what) {
    if (held) return;
    std::fprintf(stderr, "%s\n", what);
    std::_Exit(3);
}

inline bool aligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

struct Copy {
    void* to;
    const void* from;
    size_t bytes;
};
inline thread_local std::deque<std::vector<Copy>> batches;
inline thread_local std::vector<Copy> open_batch;

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
    need(aligned(to, bytes) && aligned(from, bytes), "a copy of 16 bytes begins at no multiple of 16");
    open_batch.push_back({to, from, bytes});
}
inline void __pipeline_commit() {
    batches.push_back(open_batch);
    open_batch.clear();
}
inline void __pipeline_wait_prior(size_t left) {
    for (; batches.size() > left; batches.pop_front())
        for (const Copy& one : batches.front()) std::memcpy(one.to, one.from, one.bytes);
}

namespace nvcuda::wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
enum layout_t { mem_row_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
    static_assert(M == 16 && N == 16 && K == 16);
    T of[16][16];
};

template <class F, class T>
void fill_fragment(F& one, T value) {
    __syncwarp();
    for (auto& line : one.of)
        for (auto& number : line) number = value;
}

template <class F, class T>
void load_matrix_sync(F& one, const T* from, unsigned length) {
    need(aligned(from, 32), "a fragment begins at no multiple of 32 bytes");
    need(length * sizeof(T) % 16 == 0, "a fragment's rows are no multiple of 16 bytes apart");
    __syncwarp();
    for (unsigned row = 0; row < 16; ++row)
        for (unsigned column = 0; column < 16; ++column) one.of[row][column] = from[row * length + column];
    __syncwarp();
}

template <class T>
void store_matrix_sync(T* to, const fragment<accumulator, 16, 16, 16, T>& one, unsigned length, layout_t) {
    need(aligned(to, 32), "a fragment is stored at no multiple of 32 bytes");
    __syncwarp();
    for (unsigned at = threadIdx.x % 32; at < 256; at += 32) to[at / 16 * length + at % 16] = one.of[at / 16][at % 16];
}

template <class C, class A, class B>
void mma_sync(C& to, const A& left, const B& right, const C& sum) {
    __syncwarp();
    C made = sum;
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 16; ++column) made.of[row][column] += left.of[row][k] * right.of[k][column];
    to = made;
}
}  // namespace nvcuda::wmma
using namespace nvcuda::wmma;

extern "C" void KERNEL(const NUMBER*, const NUMBER*, NUMBER*, int, int, int);

using Matrix = std::unique_ptr<NUMBER, decltype(&std::free)>;
inline Matrix matrix(size_t numbers) {  // of exactly so many bytes, that the sanitizer sees a step beyond
    void* place = nullptr;
    need(posix_memalign(&place, 512, 2 * numbers) == 0, "no memory");
    return Matrix(static_cast<NUMBER*>(place), &std::free);
}

int main(int, char** words) {
    const int rows = std::atoi(words[1]), columns = std::atoi(words[2]), inner = std::atoi(words[3]);
    const int across = std::atoi(words[4]), down = std::atoi(words[5]), threads = std::atoi(words[6]);
    const size_t of_a = size_t(rows) * inner, of_b = size_t(inner) * columns, of_c = size_t(rows) * columns;
    const Matrix of_all[] = {matrix(of_a), matrix(of_b), matrix(of_c)};
    NUMBER *a = of_all[0].get(), *b = of_all[1].get(), *c = of_all[2].get();
    need(std::fread(a, 2, of_a, stdin) == of_a && std::fread(b, 2, of_b, stdin) == of_b, "two matrices are wanted");
    for (size_t at = 0; at < of_c; ++at) c[at] = 32767;  // never written
    blockDim = {threads, 1};
    all = std::make_unique<std::barrier<>>(threads);
    for (int warp = 0; warp < threads / 32; ++warp) warps.push_back(std::make_unique<std::barrier<>>(32));
    for (int y = 0; y < down; ++y)
        for (int x = 0; x < across; ++x) {
#ifdef SHARED_BYTES
            std::memset(memory, 0x55, sizeof(memory));  // nobody may count on what lies there
#endif
            std::vector<std::thread> running;
            for (int thread = 0; thread < threads; ++thread)
                running.emplace_back([=] {
                    threadIdx = {thread, 0}, blockIdx = {x, y};
                    KERNEL(a, b, c, rows, columns, inner);
                });
            for (auto& thread : running) thread.join();
        }
    std::fwrite(c, 2, of_c, stdout);
}
