//! The engine's log as Python's logger `ringloader`.
//!
//! The engine logs from threads that know no Python, and from calls that have let go of the GIL. What it
//! says is kept here and handed over when the call that it belongs to is back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

/// Lines that are kept at most, should nobody come to fetch them.
const LINES_MAX: usize = 100;

static LINES: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());
static SOME_LINES: AtomicBool = AtomicBool::new(false);

struct Keep;

impl Log for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("ringloader")
    }

    fn log(&self, record: &Record<'_>) {
        // Never waited for: after a fork the lock may be held by a thread that is not there.
        if self.enabled(record.metadata())
            && let Ok(mut lines) = LINES.try_lock()
            && lines.len() < LINES_MAX
        {
            lines.push((record.level(), record.args().to_string()));
            SOME_LINES.store(true, Ordering::Release);
        }
    }

    fn flush(&self) {}
}

/// Begins to keep what the engine logs.
pub(crate) fn begin() {
    // Only another extension in this library could have set one before, and there is none.
    if log::set_logger(&Keep).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Hands what was kept to Python. That a handler of the log fails must not cost the call its result.
pub(crate) fn hand_over(py: Python<'_>) {
    if SOME_LINES.load(Ordering::Acquire)
        && let Err(error) = tell(py, &take())
    {
        error.write_unraisable(py, None);
    }
}

fn take() -> Vec<(Level, String)> {
    SOME_LINES.store(false, Ordering::Release);
    LINES.try_lock().map(|mut lines| std::mem::take(&mut *lines)).unwrap_or_default()
}

fn tell(py: Python<'_>, lines: &[(Level, String)]) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("ringloader",))?;
    for (level, line) in lines {
        let method = match level {
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug | Level::Trace => "debug",
        };
        logger.call_method1(method, ("%s", line))?;
    }
    Ok(())
}
