use std::ptr::{null_mut, NonNull};

use crate::{check, ffi, sized, Result};

pub type Summary = ffi::kvplan_summary;

/// How the KV cache of all workers is laid out.
pub struct Plan(NonNull<ffi::kvplan_plan>);

// Read by any thread.
unsafe impl Send for Plan {}
unsafe impl Sync for Plan {}

impl Plan {
    /// Plans a request as docs/request.md describes it.
    pub fn from_json(json: &str) -> Result<Plan> {
        let mut plan = null_mut();
        check(unsafe {
            ffi::kvplan_plan_create_from_json(json.as_ptr().cast(), json.len(), &mut plan)
        })?;
        Ok(Plan(NonNull::new(plan).expect("a plan was made")))
    }

    pub fn summary(&self) -> Result<Summary> {
        let mut summary = sized!(Summary);
        check(unsafe { ffi::kvplan_plan_summary(self.raw(), &mut summary) })?;
        Ok(summary)
    }

    /// Whether the plan keeps its contract; the first broken rule is the error.
    pub fn check(&self) -> Result<()> {
        check(unsafe { ffi::kvplan_plan_check(self.raw()) })
    }

    pub fn raw(&self) -> *const ffi::kvplan_plan {
        self.0.as_ptr()
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        unsafe { ffi::kvplan_plan_destroy(self.0.as_ptr()) }
    }
}
