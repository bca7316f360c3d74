use std::mem::size_of;
use std::ptr::{null, null_mut, NonNull};

use crate::{check, ffi, lent, sized, Plan, Result};

pub use ffi::kvplan_cache_group as Group;
pub use ffi::kvplan_manager_options as Options;
pub type Allocation = ffi::kvplan_allocation;
pub type Appended = ffi::kvplan_appended_block;
pub type State = ffi::kvplan_manager_state;
pub type Tokens = ffi::kvplan_request_tokens;

/// A request that a manager knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Request(i32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    FullAttention = ffi::KVPLAN_FULL_ATTENTION,
    Rswa = ffi::KVPLAN_RSWA,
    SlidingWindow = ffi::KVPLAN_SLIDING_WINDOW,
    ChunkedLocal = ffi::KVPLAN_CHUNKED_LOCAL,
    Mamba = ffi::KVPLAN_MAMBA,
    CrossAttention = ffi::KVPLAN_CROSS_ATTENTION,
    CircularBuffer = ffi::KVPLAN_CIRCULAR_BUFFER,
}

impl Group {
    pub fn new(kind: Kind, block_size: i64) -> Group {
        let mut group = sized!(Group);
        let status = unsafe { ffi::kvplan_cache_group_init(&mut group, size_of::<Group>()) };
        check(status).expect("a struct of this size is known");
        group.kind = kind as i32;
        group.block_size = block_size;
        group
    }
}

impl Options {
    pub fn new(num_blocks: i64, max_model_len: i64) -> Options {
        let mut options = sized!(Options);
        let status =
            unsafe { ffi::kvplan_manager_options_init(&mut options, size_of::<Options>()) };
        check(status).expect("a struct of this size is known");
        options.num_blocks = num_blocks;
        options.max_model_len = max_model_len;
        options
    }

    /// As the plan decides; `lookahead_hashes` as vLLM's default.
    pub fn of_plan(plan: &Plan, lookahead_hashes: bool) -> Result<Options> {
        let mut options = sized!(Options);
        let status = unsafe {
            ffi::kvplan_plan_manager_options(plan.raw(), lookahead_hashes.into(), &mut options)
        };
        check(status).map(|_| options)
    }
}

/// A request with so many known tokens, of which so many are the prompt and so many are computed.
pub fn tokens(num_tokens: i64, num_prompt_tokens: i64, num_computed_tokens: i64) -> Tokens {
    Tokens {
        num_tokens,
        num_prompt_tokens,
        num_computed_tokens,
        ..sized!(Tokens)
    }
}

/// Room for so many new tokens.
pub fn allocation(num_new_tokens: i64) -> Allocation {
    Allocation {
        num_new_tokens,
        ..sized!(Allocation)
    }
}

/// What a lookup found: reuse one.
pub struct Hit(NonNull<ffi::kvplan_hit>);
unsafe impl Send for Hit {}

impl Hit {
    pub fn new() -> Result<Hit> {
        let mut hit = null_mut();
        check(unsafe { ffi::kvplan_hit_create(&mut hit) })?;
        Ok(Hit(NonNull::new(hit).expect("a hit was made")))
    }

    fn summary(&self) -> ffi::kvplan_hit_summary {
        let mut summary = sized!(ffi::kvplan_hit_summary);
        let status = unsafe { ffi::kvplan_hit_get_summary(self.0.as_ptr(), &mut summary) };
        check(status).expect("a struct of this size is known");
        summary
    }
    pub fn num_tokens(&self) -> i64 {
        self.summary().num_tokens
    }
    pub fn shared_prefix_boundary(&self) -> i64 {
        self.summary().shared_prefix_boundary
    }
    /// 0 where a window needs no block.
    pub fn blocks(&self, group: usize) -> Result<&[i32]> {
        let (mut blocks, mut count) = (null(), 0);
        check(unsafe { ffi::kvplan_hit_blocks(self.0.as_ptr(), group, &mut blocks, &mut count) })?;
        Ok(unsafe { lent(blocks, count) })
    }
}

impl Drop for Hit {
    fn drop(&mut self) {
        unsafe { ffi::kvplan_hit_destroy(self.0.as_ptr()) }
    }
}

/// A decode step of many requests, an element a request. Empty slices of new tokens mean one each,
/// of tokens: computed and new ones, of tokens in flight: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<'a> {
    pub requests: &'a [Request],
    pub num_computed_tokens: &'a [i64],
    pub num_new_tokens: &'a [i64],
    pub num_tokens: &'a [i64],
    pub num_in_flight_tokens: &'a [i64],
    pub num_lookahead_tokens: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Done,
    /// Request `num_scheduled` does not fit into the pool.
    NoBlocks,
    /// Its blocks do not fit into the slice.
    NoRoom,
}

#[derive(Clone, Copy, Debug)]
pub struct StepResult {
    pub num_scheduled: usize,
    pub num_appended: usize,
    pub stop: Stop,
}

/// Something an observer of the prefix cache must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: ffi::kvplan_event_kind,
    pub group: u16,
    pub still_cached: bool,
    pub block_size: i64,
    pub num_lost: i64,
    pub hashes: Vec<Vec<u8>>,
    pub blocks: Vec<i32>,
    pub positions: Vec<i64>,
    pub parent_hash: Option<Vec<u8>>,
}

/// Decides which blocks every request holds.
pub struct CacheManager {
    raw: NonNull<ffi::kvplan_manager>,
    pool: NonNull<ffi::kvplan_pool>,
    hash_bytes: usize,
}
unsafe impl Send for CacheManager {}

impl CacheManager {
    pub fn new(options: &Options, groups: &[Group]) -> Result<CacheManager> {
        let mut raw = null_mut();
        let status =
            unsafe { ffi::kvplan_manager_create(options, groups.as_ptr(), groups.len(), &mut raw) };
        check(status)?;
        CacheManager::own(raw, options)
    }

    /// With the plan's groups; `options` are `Options::of_plan`, perhaps changed.
    pub fn from_plan(plan: &Plan, options: &Options) -> Result<CacheManager> {
        let mut raw = null_mut();
        check(unsafe { ffi::kvplan_manager_create_from_plan(plan.raw(), options, &mut raw) })?;
        CacheManager::own(raw, options)
    }

    fn own(raw: *mut ffi::kvplan_manager, options: &Options) -> Result<CacheManager> {
        let mut pool = null_mut();
        if let Err(error) = check(unsafe { ffi::kvplan_manager_pool(raw, &mut pool) }) {
            unsafe { ffi::kvplan_manager_destroy(raw) };
            return Err(error);
        }
        Ok(CacheManager {
            raw: NonNull::new(raw).expect("a manager was made"),
            pool: NonNull::new(pool).expect("a manager has a pool"),
            hash_bytes: options.hash_bytes as usize,
        })
    }

    fn get(&self) -> *mut ffi::kvplan_manager {
        self.raw.as_ptr()
    }

    pub fn state(&self) -> State {
        let mut state = sized!(State);
        let status = unsafe { ffi::kvplan_manager_get_state(self.get(), &mut state) };
        check(status).expect("a struct of this size is known");
        state
    }

    pub fn add_request(&mut self) -> Result<Request> {
        let mut request = -1;
        check(unsafe { ffi::kvplan_manager_add_request(self.get(), &mut request) })?;
        Ok(Request(request))
    }
    pub fn remove_request(&mut self, request: Request) -> Result<()> {
        check(unsafe { ffi::kvplan_manager_remove_request(self.get(), request.0) })
    }
    /// Hashes of the request's next tokens, `hash_bytes` each, one after the other.
    pub fn append_hashes(&mut self, request: Request, hashes: &[u8]) -> Result<()> {
        assert_eq!(hashes.len() % self.hash_bytes, 0, "whole hashes");
        let count = hashes.len() / self.hash_bytes;
        let hashes = hashes.as_ptr().cast();
        check(unsafe { ffi::kvplan_manager_append_hashes(self.get(), request.0, hashes, count) })
    }

    pub fn find_prefix(&self, request: Request, max_tokens: i64, hit: &mut Hit) -> Result<()> {
        let hit = hit.0.as_ptr();
        check(unsafe { ffi::kvplan_manager_find_prefix(self.get(), request.0, max_tokens, hit) })
    }

    /// False if the blocks do not fit.
    pub fn allocate(
        &mut self,
        request: Request,
        tokens: &Tokens,
        wanted: &Allocation,
        hit: Option<&Hit>,
    ) -> Result<bool> {
        let mut fits = 0;
        let hit = hit.map_or(null(), |hit| hit.0.as_ptr() as *const _);
        check(unsafe {
            ffi::kvplan_manager_allocate(self.get(), request.0, tokens, wanted, hit, &mut fits)
        })?;
        Ok(fits != 0)
    }

    /// The group's new blocks of the last allocation that fitted.
    pub fn new_blocks(&self, group: usize) -> Result<&[i32]> {
        let (mut blocks, mut count) = (null(), 0);
        check(unsafe {
            ffi::kvplan_manager_new_blocks(self.get(), group, &mut blocks, &mut count)
        })?;
        Ok(unsafe { lent(blocks, count) })
    }

    /// One decode step; new blocks come in `appended`.
    ///
    /// # Panics
    /// If a slice has neither an element a request nor none.
    pub fn schedule(&mut self, step: &Step, appended: &mut [Appended]) -> Result<StepResult> {
        let count = step.requests.len();
        assert_eq!(step.num_computed_tokens.len(), count);
        let optional = |values: &[i64]| {
            assert!(values.is_empty() || values.len() == count);
            if values.is_empty() {
                null()
            } else {
                values.as_ptr()
            }
        };
        let raw = ffi::kvplan_step {
            requests: step.requests.as_ptr().cast(),
            num_requests: count,
            num_computed_tokens: step.num_computed_tokens.as_ptr(),
            num_new_tokens: optional(step.num_new_tokens),
            num_tokens: optional(step.num_tokens),
            num_in_flight_tokens: optional(step.num_in_flight_tokens),
            num_lookahead_tokens: step.num_lookahead_tokens,
            ..sized!(ffi::kvplan_step)
        };
        let mut result = sized!(ffi::kvplan_step_result);
        check(unsafe {
            ffi::kvplan_manager_schedule(
                self.get(),
                &raw,
                appended.as_mut_ptr(),
                appended.len(),
                &mut result,
            )
        })?;
        Ok(StepResult {
            num_scheduled: result.num_scheduled,
            num_appended: result.num_appended,
            stop: match result.stop {
                ffi::KVPLAN_STOP_DONE => Stop::Done,
                ffi::KVPLAN_STOP_NO_BLOCKS => Stop::NoBlocks,
                _ => Stop::NoRoom,
            },
        })
    }

    pub fn commit(&mut self, request: Request, tokens: &Tokens, num_computed: i64) -> Result<()> {
        check(unsafe { ffi::kvplan_manager_commit(self.get(), request.0, tokens, num_computed) })
    }

    /// Frees all blocks; the request stays known: a preemption.
    pub fn free(&mut self, request: Request) -> Result<()> {
        check(unsafe { ffi::kvplan_manager_free(self.get(), request.0) })
    }
    pub fn evict(&mut self, blocks: &[i32]) -> Result<()> {
        check(unsafe { ffi::kvplan_manager_evict(self.get(), blocks.as_ptr(), blocks.len()) })
    }
    /// False, and nothing happens, while a block is in use.
    pub fn reset_prefix_cache(&mut self) -> Result<bool> {
        let mut done = 0;
        check(unsafe { ffi::kvplan_manager_reset_prefix_cache(self.get(), &mut done) })?;
        Ok(done != 0)
    }

    pub fn block_ids(&self, request: Request, group: usize) -> Result<Vec<i32>> {
        let mut count = 0;
        let read = |blocks: *mut i32, capacity: usize, count: &mut usize| {
            check(unsafe {
                ffi::kvplan_manager_block_ids(self.get(), request.0, group, blocks, capacity, count)
            })
        };
        read(null_mut(), 0, &mut count)?;
        let mut blocks = vec![0; count];
        read(blocks.as_mut_ptr(), count, &mut count)?;
        Ok(blocks)
    }

    pub fn new_step_starts(&mut self) -> Result<()> {
        check(unsafe { ffi::kvplan_manager_new_step_starts(self.get()) })
    }
    /// Blocks to zero before use.
    pub fn take_new_block_ids(&mut self) -> Result<Vec<i32>> {
        let (mut blocks, mut count) = (null(), 0);
        check(unsafe {
            ffi::kvplan_manager_take_new_block_ids(self.get(), &mut blocks, &mut count)
        })?;
        Ok(unsafe { lent(blocks, count) }.to_vec())
    }
    /// Gives each (source, destination) to `copy`, and frees both.
    pub fn make_copies(&mut self, mut copy: impl FnMut(i32, i32)) -> Result<()> {
        let (mut copies, mut count) = (null(), 0);
        check(unsafe { ffi::kvplan_manager_take_copies(self.get(), &mut copies, &mut count) })?;
        for pair in unsafe { lent(copies, count) } {
            copy(pair.source, pair.destination);
            let ends = [pair.source, pair.destination];
            check(unsafe { ffi::kvplan_pool_free(self.pool.as_ptr(), ends.as_ptr(), 2) })?;
        }
        Ok(())
    }
    pub fn take_events(&mut self) -> Result<Vec<Event>> {
        let (mut events, mut count) = (null(), 0);
        check(unsafe { ffi::kvplan_manager_take_events(self.get(), &mut events, &mut count) })?;
        let bytes = |b: &ffi::kvplan_bytes| unsafe { lent(b.data as *const u8, b.size) }.to_vec();
        let event = |e: &ffi::kvplan_event| Event {
            kind: e.kind,
            group: e.group,
            still_cached: e.still_cached != 0,
            block_size: e.block_size,
            num_lost: e.num_lost,
            hashes: unsafe { lent(e.hashes, e.num_hashes) }
                .iter()
                .map(bytes)
                .collect(),
            blocks: unsafe { lent(e.blocks, e.num_hashes) }.to_vec(),
            positions: match e.positions.is_null() {
                true => vec![],
                false => unsafe { lent(e.positions, e.num_hashes) }.to_vec(),
            },
            parent_hash: (!e.parent_hash.data.is_null()).then(|| bytes(&e.parent_hash)),
        };
        Ok(unsafe { lent(events, count) }.iter().map(event).collect())
    }
    pub fn check_invariants(&self) -> Result<()> {
        check(unsafe { ffi::kvplan_manager_check_invariants(self.get()) })
    }
}

impl Drop for CacheManager {
    fn drop(&mut self) {
        unsafe {
            ffi::kvplan_manager_destroy(self.get());
            ffi::kvplan_pool_destroy(self.pool.as_ptr());
        }
    }
}
