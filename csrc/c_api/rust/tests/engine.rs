//! A small engine: plans a model with windows, and serves requests with a prefix cache and preemption.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use kvplan_sys::{
    allocation, ffi, tokens, Appended, CacheManager, Group, Hit, Kind, Options, Plan, Request,
    Step, Stop,
};

const BLOCK: usize = 16;

struct Sequence {
    request: Request,
    tokens: Vec<u32>,
    num_prompt: usize,
    target: usize,
    computed: i64,
    num_hashes: usize,
    tables: Vec<Vec<i32>>, // as the model runner keeps them
}

struct Engine {
    manager: CacheManager,
    hit: Hit,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    /// What each block holds: group, position and the hash of all tokens up to it.
    contents: HashMap<i32, (usize, usize, u64)>,
    num_found: i64,
    num_preempted: usize,
}

fn hash_of(tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tokens.hash(&mut hasher);
    hasher.finish()
}

impl Engine {
    fn new(manager: CacheManager) -> Engine {
        Engine {
            manager,
            hit: Hit::new().unwrap(),
            waiting: VecDeque::new(),
            running: vec![],
            contents: HashMap::new(),
            num_found: 0,
            num_preempted: 0,
        }
    }

    fn add(&mut self, prompt: Vec<u32>, num_outputs: usize) {
        let request = self.manager.add_request().unwrap();
        let (num_prompt, target) = (prompt.len(), prompt.len() + num_outputs);
        let mut sequence = Sequence {
            request,
            tokens: prompt,
            num_prompt,
            target,
            computed: 0,
            num_hashes: 0,
            tables: vec![],
        };
        self.append_hashes(&mut sequence);
        self.waiting.push_back(sequence);
    }

    fn append_hashes(&mut self, s: &mut Sequence) {
        while (s.num_hashes + 1) * BLOCK <= s.tokens.len() {
            s.num_hashes += 1;
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&hash_of(&s.tokens[..s.num_hashes * BLOCK]).to_le_bytes());
            self.manager.append_hashes(s.request, &hash).unwrap();
        }
    }

    fn admit(&mut self) -> bool {
        let mut s = match self.waiting.pop_front() {
            Some(sequence) => sequence,
            None => return false,
        };
        let known = s.tokens.len() as i64;
        self.manager
            .find_prefix(s.request, known - 1, &mut self.hit)
            .unwrap();
        let mut wanted = allocation(known - self.hit.num_tokens());
        wanted.num_new_computed_tokens = self.hit.num_tokens();
        wanted.full_sequence_must_fit = 1;
        let now = tokens(known, s.num_prompt as i64, 0);
        if !self
            .manager
            .allocate(s.request, &now, &wanted, Some(&self.hit))
            .unwrap()
        {
            self.waiting.push_front(s);
            return false;
        }
        self.num_found += self.hit.num_tokens();
        s.computed = self.hit.num_tokens();
        let groups = 0..self.manager.state().num_groups as usize;
        s.tables = groups
            .map(|g| self.manager.block_ids(s.request, g).unwrap())
            .collect();
        self.compute(&mut s, known);
        self.running.push(s);
        true
    }

    /// Writes the tokens from `computed` to `end`, and reads what attention reads.
    fn compute(&mut self, s: &mut Sequence, end: i64) {
        for (group, table) in s.tables.iter().enumerate() {
            let first = if group == 0 {
                0
            } else {
                (s.computed - 31).max(0) as usize / BLOCK
            };
            for position in first..(end as usize + BLOCK - 1) / BLOCK {
                let upto = ((position + 1) * BLOCK).min(s.computed as usize);
                if upto > position * BLOCK {
                    let expected = (group, position, hash_of(&s.tokens[..upto]));
                    assert_eq!(self.contents.get(&table[position]), Some(&expected));
                }
                let upto = ((position + 1) * BLOCK).min(end as usize);
                if upto > s.computed as usize {
                    let written = (group, position, hash_of(&s.tokens[..upto]));
                    self.contents.insert(table[position], written);
                }
            }
        }
        s.computed = end;
        s.tokens.push(hash_of(&s.tokens) as u32 % 50);
        self.append_hashes(s);
    }

    fn step(&mut self) {
        let mut next = 0;
        while next < self.running.len() {
            let rows = &self.running[next..];
            let requests: Vec<Request> = rows.iter().map(|s| s.request).collect();
            let computed: Vec<i64> = rows.iter().map(|s| s.computed).collect();
            let step = Step {
                requests: &requests,
                num_computed_tokens: &computed,
                ..Step::default()
            };
            let mut appended = vec![
                Appended {
                    row: 0,
                    group: 0,
                    position: 0,
                    block: 0
                };
                8
            ];
            let done = self.manager.schedule(&step, &mut appended).unwrap();
            for new in &appended[..done.num_appended] {
                let table = &mut self.running[next + new.row as usize].tables[new.group as usize];
                assert_eq!(table.len(), new.position as usize);
                table.push(new.block);
            }
            next += done.num_scheduled;
            if done.stop == Stop::NoBlocks {
                let mut last = self.running.pop().unwrap();
                self.manager.free(last.request).unwrap();
                last.computed = 0;
                self.waiting.push_front(last);
                self.num_preempted += 1;
            }
        }
        for mut s in std::mem::take(&mut self.running) {
            let end = s.computed + 1;
            self.compute(&mut s, end);
            if s.tokens.len() < s.target {
                self.running.push(s);
            } else {
                self.manager.remove_request(s.request).unwrap();
            }
        }
        while self.running.len() < 16 && self.admit() {}
        self.manager
            .make_copies(|_, _| panic!("every hit ends with a block"))
            .unwrap();
        self.manager.new_step_starts().unwrap();
    }
}

fn manager() -> CacheManager {
    let json = r#"{"kvplan_request": 1,
        "config": {"max_model_len": 512, "max_in_flight_tokens": 512, "num_gpu_blocks_override": 90},
        "specs": [{"kind": "FullAttentionSpec", "block_size": 16, "num_kv_heads": 1,
                   "head_size": 64, "dtype": "bfloat16"},
                  {"kind": "SlidingWindowSpec", "block_size": 16, "num_kv_heads": 1,
                   "head_size": 64, "dtype": "bfloat16", "sliding_window": 32}],
        "workers": [{"available_memory": 1000000000, "layers": [["0", 0], ["1", 1]]}]}"#;
    match Plan::from_json(json) {
        Ok(plan) => {
            plan.check().unwrap();
            assert_eq!(plan.summary().unwrap().num_groups, 2);
            CacheManager::from_plan(&plan, &Options::of_plan(&plan, true).unwrap()).unwrap()
        }
        Err(error) => {
            assert_eq!(error.status, ffi::KVPLAN_NOT_BUILT, "{error}");
            let mut window = Group::new(Kind::SlidingWindow, 16);
            window.window = 32;
            let groups = [Group::new(Kind::FullAttention, 16), window];
            CacheManager::new(&Options::new(90, 512), &groups).unwrap()
        }
    }
}

#[test]
fn serves_every_request_to_its_end() {
    let mut engine = Engine::new(manager());
    let mut random = 1u64;
    let mut below = |limit: u64| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) % limit
    };
    let document: Vec<u32> = (0..200).map(|_| below(50) as u32).collect();
    for _ in 0..100 {
        let mut prompt = document[..below(200) as usize].to_vec();
        prompt.extend((0..1 + below(20)).map(|_| below(50) as u32));
        engine.add(prompt, 1 + below(100) as usize);
    }
    while !(engine.waiting.is_empty() && engine.running.is_empty()) {
        engine.step();
        engine.manager.check_invariants().unwrap();
    }
    assert!(engine.num_found > 0 && engine.num_preempted > 0);
    let state = engine.manager.state();
    assert_eq!(
        (state.num_requests, state.num_free_blocks),
        (0, state.num_blocks - 1)
    );
    assert!(engine.manager.reset_prefix_cache().unwrap());
}

#[test]
fn refuses_bad_calls_and_tells_events() {
    let mut options = Options::new(20, 100);
    options.enable_events = 1;
    let mut manager = CacheManager::new(&options, &[Group::new(Kind::FullAttention, 16)]).unwrap();
    assert_eq!(
        unsafe { ffi::kvplan_abi_version() },
        ffi::KVPLAN_ABI_VERSION
    );
    let request = manager.add_request().unwrap();
    let now = tokens(32, 32, 0);
    let error = manager
        .allocate(request, &now, &allocation(-1), None)
        .unwrap_err();
    assert_eq!(error.status, ffi::KVPLAN_INVALID_ARGUMENT);
    manager.append_hashes(request, &[7; 64]).unwrap();
    assert!(manager
        .allocate(request, &now, &allocation(32), None)
        .unwrap());
    assert_eq!(manager.new_blocks(0).unwrap(), [1, 2]);
    let error = manager.new_blocks(1).unwrap_err();
    assert!(error.to_string().contains("no group 1 of 1"));
    let events = manager.take_events().unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].hashes[1], [7; 32]);
    assert_eq!(
        (events[0].positions.clone(), events[0].blocks.clone()),
        (vec![0, 1], vec![1, 2])
    );
    assert_eq!(events[0].parent_hash, None);
    manager.evict(&[1]).unwrap();
    assert_eq!(
        manager.take_events().unwrap()[0].kind,
        ffi::KVPLAN_EVENT_REMOVED
    );
    assert!(!manager.reset_prefix_cache().unwrap());
    manager.remove_request(request).unwrap();
    assert!(manager.remove_request(request).is_err());
    let groups = [Group::new(Kind::SlidingWindow, 16)];
    let error = CacheManager::new(&options, &groups).err().unwrap();
    assert!(error.to_string().contains("window is 1 to"));
}
