// 3³ convolutions of 32 channels, and their gradients, on the tensor cores of GPUs from compute capability 8.0 on.
//
// Maps are rows of 32 channels of 16 bits, one for each voxel and for the padding behind each line, plane and FOV (see
// gpu.py). So a neighbour in any direction is a fixed number of rows away, and padding, which is 0, surrounds each FOV.
// A block of threads keeps the rows around its own in shared memory: one span for each of the three planes.
//
// gpu.py compiles one kernel at a time with these constants: its name in capitals; BF16 (else float16); SIZE_Z, SIZE_Y,
// SIZE_X (voxels of a FOV), ROWS (of all FOVs); TILES (of 16 rows, of a warp), WARPS, MIN_BLOCKS (on a multiprocessor),
// GRADIENT_WARPS, GRADIENT_ROWS.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int STRIDE_Y = SIZE_X + 1, STRIDE_Z = STRIDE_Y * (SIZE_Y + 1);
constexpr int REACH = STRIDE_Y + 1;   // rows to the neighbours in a plane
constexpr int ROW_BYTES = 64;  // of 32 channels

extern __shared__ __align__(128) char window[];

__device__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Rows in shared memory: the four pieces of 16 bytes of a row are permuted, so that 8 rows use all banks.
__device__ u32 piece(int row, int number) { return row * ROW_BYTES + ((number ^ ((row >> 1) & 3)) << 4); }

// Begin to copy rows from memory; those before the first and behind the last are 0.
__device__ void copy_rows(u32 to, const char* from, int first, int count) {
    for (int i = threadIdx.x; i < count * 4; i += blockDim.x) {
        const int row = first + (i >> 2);
        const bool exists = (u32)row < (u32)ROWS;
        const char* source = from + (exists ? (u64)row * ROW_BYTES + (i & 3) * 16 : 0);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + piece(i >> 2, i & 3)), "l"(source),
                     "r"(exists ? 16 : 0)
                     : "memory");
    }
}

__device__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most PENDING of the groups that have ended are not copied yet.
template <int PENDING> __device__ void wait_for_rows() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncthreads();
}

__device__ void load_matrices(u32 (&a)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}

__device__ void load_transposed(u32 (&a)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}

#if BF16
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif

__device__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE
        ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ u32 packed(float low, float high) {
    u32 both;
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ void unpack(u32 both, float& low, float& high) {
#if BF16
    low = __uint_as_float(both << 16);
    high = __uint_as_float(both & 0xffff0000u);
#else
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(both));
#endif
}

__device__ bool is_voxel(int row) {  // not padding
    int x = row % STRIDE_Y, y = row / STRIDE_Y % (SIZE_Y + 1), z = row / STRIDE_Z % (SIZE_Z + 1);
    return row < ROWS && x < SIZE_X && y < SIZE_Y && z < SIZE_Z;
}

// Convolve the rows of a block: acc[m][n][i] as in mma.m16n8k16, with channels permuted by gpu.py.
__device__ void convolve(const char* x, const uint4* weights, float (&acc)[TILES][4][4]) {
    constexpr int TILE = TILES * 16 * WARPS, SPAN = TILE + 2 * REACH;
    const u32 base = shared_address(window);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first = blockIdx.x * TILE;
#pragma unroll
    for (int dz = 0; dz < 3; dz++) {
        copy_rows(base + dz * SPAN * ROW_BYTES, x, first + (dz - 1) * STRIDE_Z - REACH, SPAN);
        end_group();
    }
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < 4; n++) acc[m][n][0] = acc[m][n][1] = acc[m][n][2] = acc[m][n][3] = 0;
    const int own = warp * TILES * 16 + (lane & 7) + ((lane >> 3) & 1) * 8;
#pragma unroll
    for (int dz = 0; dz < 3; dz++) {
        if (dz == 0) wait_for_rows<2>();
        if (dz == 1) wait_for_rows<1>();
        if (dz == 2) wait_for_rows<0>();
#pragma unroll
        for (int tap = 0; tap < 9; tap++) {
            uint4 b[4];
#pragma unroll
            for (int q = 0; q < 4; q++) b[q] = __ldg(weights + ((dz * 9 + tap) * 4 + q) * 32 + lane);
            const int row = own + tap / 3 * STRIDE_Y + tap % 3;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const u32 address = base + dz * SPAN * ROW_BYTES + piece(row, k * 2 + (lane >> 4));
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    u32 a[4];
                    load_matrices(a, address + m * 16 * ROW_BYTES);
                    multiply(acc[m][0], a, b[2 * k].x, b[2 * k].y);
                    multiply(acc[m][1], a, b[2 * k].z, b[2 * k].w);
                    multiply(acc[m][2], a, b[2 * k + 1].x, b[2 * k + 1].y);
                    multiply(acc[m][3], a, b[2 * k + 1].z, b[2 * k + 1].w);
                }
            }
        }
    }
}

__device__ uint4 packed_row(const float (&v)[8]) {
    return make_uint4(packed(v[0], v[1]), packed(v[2], v[3]), packed(v[4], v[5]), packed(v[6], v[7]));
}

__device__ void unpack_row(const uint4& row, float (&v)[8]) {
    unpack(row.x, v[0], v[1]);
    unpack(row.y, v[2], v[3]);
    unpack(row.z, v[4], v[5]);
    unpack(row.w, v[6], v[7]);
}

// Call `end(index, v)` for each piece of 8 channels that a thread has; `v` is all 0 in padding.
template <typename End> __device__ void for_rows(const float (&acc)[TILES][4][4], const float (&bias)[8], End end) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int first = (blockIdx.x * WARPS + warp) * TILES * 16 + (lane >> 2);
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + m * 16 + half * 8;
            if (row >= ROWS) continue;
            float v[8];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                v[2 * n] = acc[m][n][2 * half] + bias[2 * n];
                v[2 * n + 1] = acc[m][n][2 * half + 1] + bias[2 * n + 1];
            }
            end((u64)row * 4 + (lane & 3), is_voxel(row), v);
        }
}

__device__ void load_bias(const float* bias, float (&own)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) own[i] = bias[(threadIdx.x & 3) * 8 + i];
}

#define BLOCK __launch_bounds__(WARPS * 32, MIN_BLOCKS)

#if defined(CONV_RELU)
// out = relu(conv(x) + bias)
extern "C" __global__ void BLOCK conv_relu(const char* x, const uint4* weights, const float* bias, uint4* out) {
    float acc[TILES][4][4], own[8];
    convolve(x, weights, acc);
    load_bias(bias, own);
    for_rows(acc, own, [&](u64 at, bool is_voxel, float(&v)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = is_voxel ? fmaxf(v[i], 0) : 0;
        out[at] = packed_row(v);
    });
}
#elif defined(CONV_ADD)
// net = before + conv(x) + bias, and its relu
extern "C" __global__ void BLOCK conv_add(const char* x, const uint4* weights, const float* bias, const uint4* before,
                                         uint4* net, uint4* relu) {
    float acc[TILES][4][4], own[8];
    convolve(x, weights, acc);
    load_bias(bias, own);
    for_rows(acc, own, [&](u64 at, bool is_voxel, float(&v)[8]) {
        float old[8];
        unpack_row(before[at], old);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = is_voxel ? v[i] + old[i] : 0;
        const uint4 sum = packed_row(v);
        net[at] = sum;
        unpack_row(sum, v);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = fmaxf(v[i], 0);
        relu[at] = packed_row(v);
    });
}
#elif defined(CONV_BACK)
// out = before + conv(x) where active > 0
extern "C" __global__ void BLOCK conv_back(const char* x, const uint4* weights, const uint4* active,
                                          const uint4* before, uint4* out) {
    float acc[TILES][4][4], none[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    convolve(x, weights, acc);
    for_rows(acc, none, [&](u64 at, bool is_voxel, float(&v)[8]) {
        float on[8], old[8];
        unpack_row(active[at], on);
        unpack_row(before[at], old);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = is_voxel ? old[i] + (on[i] > 0 ? v[i] : 0) : 0;
        out[at] = packed_row(v);
    });
}
#elif defined(WEIGHT_GRADIENT)
// Gradient of the weights: sums[block][tap][c][f] = sum of x[row + tap][c] * grad[row][f] over the rows of a block.
// Each warp has three taps, those of a line.
extern "C" __global__ void __launch_bounds__(GRADIENT_WARPS * 32, 1)
    weight_gradient(const char* x, const char* grad, float* sums) {
    constexpr int NUM_TILES = (ROWS + GRADIENT_ROWS - 1) / GRADIENT_ROWS, SPAN = GRADIENT_ROWS + 2 * REACH;
    constexpr int PLANE = SPAN * ROW_BYTES, STAGE = 3 * PLANE + GRADIENT_ROWS * ROW_BYTES;
    const u32 base = shared_address(window);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dz = warp / 3, dy = warp % 3;
    float acc[3][2][4][4];
#pragma unroll
    for (int i = 0; i < 3 * 2 * 4 * 4; i++) (&acc[0][0][0][0])[i] = 0;
    auto load = [&](int tile, int stage) {
        const u32 to = base + stage * STAGE;
        const int first = tile * GRADIENT_ROWS;
        for (int z = 0; z < 3; z++) copy_rows(to + z * PLANE, x, first + (z - 1) * STRIDE_Z - REACH, SPAN);
        copy_rows(to + 3 * PLANE, grad, first, GRADIENT_ROWS);
        end_group();
    };
    if (blockIdx.x < NUM_TILES) load(blockIdx.x, 0);
    int stage = 0;
    for (int tile = blockIdx.x; tile < NUM_TILES; tile += gridDim.x, stage ^= 1) {
        if (tile + gridDim.x < NUM_TILES) {
            load(tile + gridDim.x, stage ^ 1);
            wait_for_rows<1>();
        } else
            wait_for_rows<0>();
        const u32 at = base + stage * STAGE;
#pragma unroll 2
        for (int k = 0; k < GRADIENT_ROWS; k += 16) {
            u32 b[2][4];  // 16 rows of grad: channels 0 to 15 and 16 to 31
            const int row = k + (lane & 15);
#pragma unroll
            for (int h = 0; h < 2; h++) load_transposed(b[h], at + 3 * PLANE + piece(row, 2 * h + (lane >> 4)));
#pragma unroll
            for (int dx = 0; dx < 3; dx++) {
                const int from = k + dy * STRIDE_Y + dx + (lane & 7) + (lane >> 4) * 8;
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    u32 a[4];  // channels m * 16 to m * 16 + 15 of 16 rows of x
                    load_transposed(a, at + dz * PLANE + piece(from, 2 * m + ((lane >> 3) & 1)));
#pragma unroll
                    for (int n = 0; n < 4; n++)
                        multiply(acc[dx][m][n], a, b[n >> 1][(n & 1) * 2], b[n >> 1][(n & 1) * 2 + 1]);
                }
            }
        }
        __syncthreads();
    }
    float* own = sums + (u64)blockIdx.x * 27 * 1024;
#pragma unroll
    for (int dx = 0; dx < 3; dx++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int c = m * 16 + (lane >> 2) + (i >> 1) * 8, f = n * 8 + (lane & 3) * 2 + (i & 1);
                    own[((warp * 3 + dx) * 32 + c) * 32 + f] = acc[dx][m][n][i];
                }
}
#endif
