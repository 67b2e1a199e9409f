//! The one engine of a process: its workers, its batch memory and its choice of how to read.
//!
//! It is made on first use, from what [`configure`] and the environment say. A forked child has
//! none of its parent's threads, so it makes an engine of its own.

use std::env;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use ringloader_fallback::PerProcess;
use ringloader_uring::{DEPTH, DEPTH_MAX};

pub use crate::backend::Backend;
use crate::backend::{self, Choice, Route};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::pool::Pool;

/// What can be set before the engine is first used. What is `None` comes from the environment
/// (`RINGLOADER_WORKERS`, `RINGLOADER_PIN`, `RINGLOADER_IO`, `RINGLOADER_DEPTH`), or else from the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Config {
    /// Threads that help with large batches. Default: one for each core the process may use, as
    /// far as its affinity mask, its rank's share and its control group's quota go.
    pub workers: Option<usize>,
    /// Whether each worker stays on one core. Default: yes.
    pub pin: Option<bool>,
    /// How to read; `Some(None)` is the default, whatever the environment says: copies of what is
    /// in memory, and `io_uring` where it works for the rest.
    pub io: Option<Option<Backend>>,
    /// Reads that each thread has under way through `io_uring` at most. Default: 256.
    pub depth: Option<u32>,
}

/// More workers than any machine has cores.
const WORKERS_MAX: usize = 4096;
const DEPTHS: RangeInclusive<u32> = 1..=DEPTH_MAX;

/// What is running, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The backend that a store reads through unless it was opened with another.
    pub io: Backend,
    /// Why that one.
    pub io_reason: String,
    /// Why a thread of this process could have no ring, if that has happened.
    pub ring_refused: Option<&'static str>,
    /// When records are copied from mapped files, and why.
    pub mapping: String,
    /// Reads that each thread has under way through `io_uring` at most.
    pub depth: u32,
    /// Worker threads.
    pub workers: usize,
    /// Whether they are pinned.
    pub pinned: bool,
    /// The cores that the process may use.
    pub cores: Vec<usize>,
    /// This process's number among those that a launcher has started on the machine, and how
    /// many they are.
    pub local_rank: Option<(usize, usize)>,
    /// Batch memory that is kept for the next batch, in bytes.
    pub pool_idle_bytes: usize,
}

/// The engine of this process.
#[derive(Debug)]
pub(crate) struct Engine {
    choice: Choice,
    depth: u32,
    pub(crate) executor: Executor,
    pub(crate) pool: Arc<Pool>,
}

static CONFIG: Mutex<Config> =
    Mutex::new(Config { workers: None, pin: None, io: None, depth: None });
static ENGINE: PerProcess<Engine> = PerProcess::new();

/// Sets how the engine will be made. What is `None` in `config` stays as an earlier call has set it.
///
/// # Errors
/// [`Error::InvalidArgument`] if a value is impossible or the engine was made already.
pub fn configure(config: Config) -> Result<()> {
    if config.workers.is_some_and(|workers| workers > WORKERS_MAX) {
        return Err(Error::InvalidArgument(format!("workers must be at most {WORKERS_MAX}")));
    }
    if config.depth.is_some_and(|depth| !DEPTHS.contains(&depth)) {
        return Err(Error::InvalidArgument(format!("depth must be from 1 to {DEPTH_MAX}")));
    }
    let mut current = CONFIG.lock().unwrap_or_else(PoisonError::into_inner);
    if ENGINE.get().is_some() {
        return Err(Error::InvalidState(
            "configure must be called before the first batch is gathered or appended, and before \
             engine_info: the engine is running"
                .into(),
        ));
    }
    *current = Config {
        workers: config.workers.or(current.workers),
        pin: config.pin.or(current.pin),
        io: config.io.or(current.io),
        depth: config.depth.or(current.depth),
    };
    Ok(())
}

/// Checks what the environment says, so that a mistake in it is seen before anything is read.
///
/// # Errors
/// [`Error::InvalidArgument`] that names the variable.
pub fn check_environment() -> Result<()> {
    configured().map(drop)
}

/// What is running in this process; this makes the engine if nothing has yet.
///
/// # Errors
/// [`Error::InvalidArgument`] if an environment variable has a value that means nothing, and
/// [`Error::BackendUnavailable`] if one names a backend that cannot be had.
pub fn info() -> Result<Info> {
    let engine = engine()?;
    let cores = engine.executor.cores();
    Ok(Info {
        io: engine.choice.backend,
        io_reason: engine.choice.reason.clone(),
        ring_refused: backend::refusal(),
        mapping: engine.choice.mapped_reason.clone(),
        depth: engine.depth,
        workers: engine.executor.workers(),
        pinned: engine.executor.pinned(),
        cores: cores.ids.clone(),
        local_rank: cores.rank,
        pool_idle_bytes: engine.pool.idle_bytes(),
    })
}

/// Memory for a batch of `len` bytes from the process's pool.
pub fn take_buffer(len: usize) -> Result<crate::pool::Buffer> {
    engine()?.pool.take(len)
}

pub(crate) fn engine() -> Result<&'static Engine> {
    match ENGINE.get() {
        Some(engine) => Ok(engine),
        // An engine that cannot be made may be made later, with another configuration.
        None => Engine::new().map(|made| ENGINE.get_or_init(|| made)),
    }
}

impl Engine {
    /// The route of a store that was opened with `io`.
    pub(crate) fn route(&self, io: Option<Backend>) -> Route {
        io.map_or(self.choice.route, |backend| Route::of(backend, self.depth))
    }

    fn new() -> Result<Self> {
        let config = configured()?;
        let depth = config.depth.unwrap_or(DEPTH);
        let choice = backend::choose(config.io.flatten(), depth)?;
        let pool = Arc::<Pool>::default();
        let (pin, reader) = (config.pin.unwrap_or(true), choice.route.reader);
        let executor = Executor::new(config.workers, pin, reader);
        Ok(Self { choice, depth, executor, pool })
    }
}

/// What was configured, or else what the environment says.
fn configured() -> Result<Config> {
    let set = *CONFIG.lock().unwrap_or_else(PoisonError::into_inner);
    let backend = |name: &str| Backend::from_name(name).map_err(|error| error.to_string());
    Ok(Config {
        workers: or_env(set.workers, "RINGLOADER_WORKERS", parse_workers)?,
        pin: or_env(set.pin, "RINGLOADER_PIN", parse_switch)?,
        depth: or_env(set.depth, "RINGLOADER_DEPTH", parse_depth)?,
        io: or_env(set.io, "RINGLOADER_IO", backend)?,
    })
}

fn or_env<T>(
    set: Option<T>,
    name: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>> {
    if set.is_some() {
        return Ok(set);
    }
    let refused = |reason| Error::InvalidArgument(format!("{name}: {reason}"));
    match env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => parse(&value).map(Some).map_err(refused),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(refused("it is not text".into())),
    }
}

fn parse_workers(value: &str) -> Result<usize, String> {
    let workers = value.parse().ok().filter(|workers| *workers <= WORKERS_MAX);
    workers.ok_or_else(|| format!("expected a number up to {WORKERS_MAX} and found {value:?}"))
}

fn parse_depth(value: &str) -> Result<u32, String> {
    let depth = value.parse().ok().filter(|depth| DEPTHS.contains(depth));
    depth.ok_or_else(|| format!("expected a number from 1 to {DEPTH_MAX} and found {value:?}"))
}

fn parse_switch(value: &str) -> Result<bool, String> {
    match value {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("expected 0 or 1 and found {value:?}")),
    }
}
