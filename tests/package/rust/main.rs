//! The C interface from Rust: plan a model, read the plan, use the pool.

use std::ffi::{c_char, c_void, CStr};
use std::ptr::{null, null_mut};

#[repr(C)]
#[derive(Default)]
struct Summary {
    struct_size: usize,
    max_model_len: i64,
    num_blocks: i64,
    num_groups: i64,
    num_workers: i64,
    limiting: [i64; 2],
    bytes_per_block: i64,
    rest: [i64; 6],
    concurrency: [f64; 3],
    safe_ids: [i64; 2],
}

const NOT_BUILT: i32 = 9;

#[link(name = "kvplan")]
extern "C" {
    fn kvplan_last_error() -> *const c_char;
    fn kvplan_plan_create_from_json(
        json: *const c_char,
        bytes: usize,
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
        let bytes = 60i64 << 30;
        let layers: Vec<String> = (0..80).map(|i| format!("[\"layers.{i}\", 0]")).collect();
        let json = format!(
            r#"{{"kvplan_request": 1, "config": {{"max_model_len": 131072}},
            "specs": [{{"kind": "FullAttentionSpec", "block_size": 16, "num_kv_heads": 8,
                        "head_size": 128, "dtype": "bfloat16"}}],
            "workers": [{{"available_memory": {bytes}, "layers": [{}]}}]}}"#,
            layers.join(", ")
        );
        let mut plan = null_mut();
        let status = kvplan_plan_create_from_json(json.as_ptr().cast(), json.len(), &mut plan);
        if status == NOT_BUILT {
            println!("no JSON library: nothing is planned");
            return;
        }
        ok(status);
        ok(kvplan_plan_check(plan));
        let mut summary = Summary {
            struct_size: std::mem::size_of::<Summary>(),
            ..Summary::default()
        };
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
        assert_eq!(kvplan_plan_create_from_json(null(), 0, &mut plan), 1);
    }
    println!("ok");
}
