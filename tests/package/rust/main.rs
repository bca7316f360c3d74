//! The C interface from Rust: plan a model, read the plan, use the pool.

use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Spec {
    kind: i32,
    dcp_sharded: i32,
    block_size: i64,
    num_kv_heads: i64,
    head_size: i64,
    head_size_v: i64,
    dtype: *const c_char,
    window: i64,
    page_size_padded: i64,
    alignment: i64,
    state_content_bytes: i64,
    num_head_slots: i64,
    tokens_per_state: i64,
    block_stride_alignment: i64,
    page_size: i64,
    num_speculative_blocks: i64,
    custom_class: *const c_char,
    cap_tokens: i64,
    extra_pages: i64,
    cap_includes_in_flight: i32,
    is_draft: i32,
}

#[repr(C)]
#[derive(Default)]
struct Config {
    max_model_len: i64,
    auto_fit: i32,
    layout: i32,
    max_in_flight_tokens: i64,
    max_concurrent_batches: i64,
    tensor_parallel_size: i64,
    decode_context_parallel_size: i64,
    num_gpu_blocks_override: i64,
    max_num_encoder_input_tokens: i64,
    encoder_tokens_per_request: i64,
    num_prefill_lookahead_tokens: i64,
    mamba_align: i32,
    disable_hybrid_kv_cache_manager: i32,
    grouping: i32,
    reserved: i32,
    max_groups: i64,
    reference_model_len: i64,
    min_large_blocks: i64,
}

#[repr(C)]
#[derive(Default)]
struct Summary {
    max_model_len: i64,
    num_blocks: i64,
    num_groups: i64,
    num_workers: i64,
    limiting: [i64; 2],
    bytes_per_block: i64,
    rest: [i64; 6],
    concurrency: [f64; 2],
    safe_ids: [i64; 2],
}

#[link(name = "kvplan")]
extern "C" {
    fn kvplan_last_error() -> *const c_char;
    fn kvplan_config_init(config: *mut Config);
    fn kvplan_spec_init(spec: *mut Spec, kind: i32);
    fn kvplan_request_create(out: *mut *mut c_void) -> i32;
    fn kvplan_request_destroy(request: *mut c_void);
    fn kvplan_request_add_spec(request: *mut c_void, spec: *const Spec, id: *mut i32) -> i32;
    fn kvplan_request_add_layer(request: *mut c_void, name: *const c_char, id: *mut i32) -> i32;
    fn kvplan_request_add_worker(
        request: *mut c_void,
        layers: *const i32,
        specs: *const i32,
        count: usize,
        bytes: i64,
    ) -> i32;
    fn kvplan_plan_create(
        request: *const c_void,
        config: *const Config,
        out: *mut *mut c_void,
    ) -> i32;
    fn kvplan_plan_destroy(plan: *mut c_void);
    fn kvplan_plan_summary(plan: *const c_void, out: *mut Summary) -> i32;
    fn kvplan_plan_check(plan: *const c_void) -> i32;
    fn kvplan_pool_create(num_blocks: i64, caching: i32, out: *mut *mut c_void) -> i32;
    fn kvplan_pool_destroy(pool: *mut c_void);
    fn kvplan_pool_allocate(pool: *mut c_void, blocks: *mut i32, count: usize) -> i32;
    fn kvplan_pool_num_free(pool: *const c_void) -> i64;
}

fn ok(status: i32) {
    let message = unsafe { CStr::from_ptr(kvplan_last_error()) };
    assert_eq!(status, 0, "{}", message.to_string_lossy());
}

fn main() {
    unsafe {
        let mut request = null_mut();
        ok(kvplan_request_create(&mut request));
        let mut spec = std::mem::zeroed::<Spec>();
        kvplan_spec_init(&mut spec, 0);
        spec.block_size = 16;
        spec.num_kv_heads = 8;
        spec.head_size = 128;
        let dtype = CString::new("torch.bfloat16").unwrap();
        spec.dtype = dtype.as_ptr();
        let mut spec_id = -1;
        ok(kvplan_request_add_spec(request, &spec, &mut spec_id));
        let layers: Vec<i32> = (0..80)
            .map(|i| {
                let name = CString::new(format!("layers.{i}")).unwrap();
                let mut id = -1;
                ok(kvplan_request_add_layer(request, name.as_ptr(), &mut id));
                id
            })
            .collect();
        let specs = vec![spec_id; layers.len()];
        let bytes = 60i64 << 30;
        ok(kvplan_request_add_worker(request, layers.as_ptr(), specs.as_ptr(), 80, bytes));

        let mut config = Config::default();
        kvplan_config_init(&mut config);
        config.max_model_len = 131072;
        let mut plan = null_mut();
        ok(kvplan_plan_create(request, &config, &mut plan));
        kvplan_request_destroy(request);
        ok(kvplan_plan_check(plan));
        let mut summary = Summary::default();
        ok(kvplan_plan_summary(plan, &mut summary));
        assert_eq!(summary.bytes_per_block, 80 * 65536);
        assert_eq!(summary.num_blocks, bytes / (80 * 65536));
        assert_eq!((summary.num_groups, summary.num_workers), (1, 1));

        let mut pool = null_mut();
        ok(kvplan_pool_create(summary.num_blocks, 1, &mut pool));
        let mut blocks = [0i32; 100];
        ok(kvplan_pool_allocate(pool, blocks.as_mut_ptr(), blocks.len()));
        assert!(blocks.iter().all(|&b| b > 0));
        assert_eq!(kvplan_pool_num_free(pool), summary.num_blocks - 1 - 100);
        kvplan_pool_destroy(pool);
        kvplan_plan_destroy(plan);
        assert_eq!(kvplan_plan_create(null(), &config, &mut plan), 1);
    }
    println!("ok");
}
