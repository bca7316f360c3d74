//! kvplan for Rust: plan a KV cache, and let its manager decide which blocks every request holds.
//!
//! `ffi` has all of `kvplan/c_api.h`, where each rule is. What is above it here is safe: handles are
//! owned, errors are `Error`, and what the library lends cannot outlive the next call.

#[allow(non_camel_case_types)]
pub mod ffi {
    use std::ffi::c_void;
    use std::os::raw::c_char;
    include!(concat!(env!("OUT_DIR"), "/c_api.rs"));
}

mod manager;
mod plan;

use std::ffi::CStr;
use std::fmt;

pub use manager::{
    allocation, tokens, Allocation, Appended, CacheManager, Event, Group, Hit, Kind, Options,
    Request, State, Step, StepResult, Stop, Tokens,
};
pub use plan::{Plan, Summary};

/// Why a call was refused. It has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub status: ffi::kvplan_status,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.message)
    }
}
impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

fn check(status: ffi::kvplan_status) -> Result<()> {
    if status == ffi::KVPLAN_OK {
        return Ok(());
    }
    let message = unsafe { CStr::from_ptr(ffi::kvplan_last_error()) };
    Err(Error {
        status,
        message: message.to_string_lossy().into_owned(),
    })
}

/// A struct that says its size, everything else zero.
macro_rules! sized {
    ($kind:ty) => {{
        let mut value: $kind = unsafe { std::mem::zeroed() };
        value.struct_size = std::mem::size_of::<$kind>();
        value
    }};
}
use sized;

/// What the library lends.
///
/// # Safety
/// `data` points to `count` values, and the result is used no longer than they are there.
unsafe fn lent<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, count)
    }
}
