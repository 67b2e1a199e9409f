//! The ways to a store's bytes, which of them a machine has, and which of them to use.

use ringloader_fallback::{PerProcess, page_cache};
use ringloader_uring::SetupError;

use crate::error::{Error, Result};

/// A way to read that can be asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// `io_uring` (Linux).
    Uring,
    /// Positional reads, on a pool of threads when the data is cold.
    Pread,
    /// Copies from shared mappings of the files, whether they are in memory or not.
    Mmap,
}

impl Backend {
    /// The backend's name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Pread => "pread",
            Self::Mmap => "mmap",
        }
    }

    /// The backend of that name; `None` is `"auto"`, the engine's choice.
    pub fn from_name(name: &str) -> Result<Option<Self>> {
        match name {
            "auto" => Ok(None),
            "uring" => Ok(Some(Self::Uring)),
            "pread" => Ok(Some(Self::Pread)),
            "mmap" => Ok(Some(Self::Mmap)),
            _ => Err(Error::InvalidArgument(format!(
                "unknown io {name:?}: expected 'auto', 'uring', 'pread' or 'mmap'"
            ))),
        }
    }
}

/// What a batch of reads is handed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A ring. Unless it is `required`, a thread that cannot have one reads with pread.
    Uring {
        required: bool,
        depth: u32,
    },
    Pread,
}

/// When records are copied from mappings of their chunks, and not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapped {
    Never,
    /// While their chunks are in the page cache.
    Resident,
    Always,
}

/// How the bytes of a store are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) reader: Reader,
    pub(crate) mapped: Mapped,
}

impl Route {
    /// The route that was asked for by name; a ring has `depth` reads under way at most.
    pub(crate) fn of(backend: Backend, depth: u32) -> Self {
        match backend {
            Backend::Uring => {
                Self { reader: Reader::Uring { required: true, depth }, mapped: Mapped::Never }
            }
            Backend::Pread => Self { reader: Reader::Pread, mapped: Mapped::Never },
            // Whatever cannot be had from a mapping is read, to learn what is wrong with it.
            Backend::Mmap => Self { reader: Reader::Pread, mapped: Mapped::Always },
        }
    }

    /// The route for a single read where nothing else was asked for: one system call, when a
    /// ring takes as many and a mapping two to be sure of what was copied.
    pub(crate) fn for_one_read(self) -> Self {
        let is_free = self.mapped == Mapped::Resident
            || matches!(self.reader, Reader::Uring { required: false, .. });
        if is_free { Self { reader: Reader::Pread, mapped: Mapped::Never } } else { self }
    }
}

/// Checks that the backend that was asked for can be had.
pub(crate) fn require(backend: Backend) -> Result<()> {
    let refused = |reason| Err(Error::BackendUnavailable { name: backend.name(), reason });
    match backend {
        Backend::Uring => match ringloader_uring::probe() {
            Ok(_) => Ok(()),
            Err(why) => refused(why.to_string()),
        },
        Backend::Mmap if !cfg!(unix) => refused("mappings are used on Unix only".into()),
        Backend::Pread | Backend::Mmap => Ok(()),
    }
}

/// A route, and why that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) route: Route,
    /// The backend that stands for it in the API.
    pub(crate) backend: Backend,
    pub(crate) reason: String,
    pub(crate) mapped_reason: String,
}

static REFUSAL: PerProcess<String> = PerProcess::new();

/// Notes, and tells the log once for each process, that a thread could have no ring although
/// the machine has them.
pub(crate) fn note_refusal(why: &SetupError) {
    REFUSAL.get_or_init(|| {
        log::warn!("a thread reads with pread instead of io_uring: {why}");
        why.to_string()
    });
}

/// Why a thread of this process could have no ring, if that has happened.
pub(crate) fn refusal() -> Option<&'static str> {
    REFUSAL.get().map(String::as_str)
}

/// The route of stores that ask for none, where `asked` was configured.
pub(crate) fn choose(asked: Option<Backend>, depth: u32) -> Result<Choice> {
    let Some(backend) = asked else { return Ok(choose_freely(depth)) };
    require(backend)?;
    let reason = "asked for by configure or RINGLOADER_IO".to_owned();
    let mapped_reason = match backend {
        Backend::Mmap => "every record is copied from a mapping".into(),
        _ => format!("io={:?} uses none", backend.name()),
    };
    Ok(Choice { route: Route::of(backend, depth), backend, reason, mapped_reason })
}

fn choose_freely(depth: u32) -> Choice {
    let (mapped, mapped_reason) = choose_mapped();
    let (reader, backend, reason) = match ringloader_uring::probe() {
        Ok(features) => (
            Reader::Uring { required: false, depth },
            Backend::Uring,
            format!("io_uring works here, {features}"),
        ),
        Err(why) => {
            let reason = format!("io_uring cannot be used: {why}");
            if cfg!(target_os = "linux") {
                log::warn!("reading with pread threads instead: {reason}");
            }
            (Reader::Pread, Backend::Pread, reason)
        }
    };
    Choice { route: Route { reader, mapped }, backend, reason, mapped_reason }
}

/// Whether the system says what is in its page cache.
fn choose_mapped() -> (Mapped, String) {
    if page_cache::can_be_asked() {
        (Mapped::Resident, "records of chunks that are in memory are copied".into())
    } else {
        let reason = "the system does not say what is in memory (cachestat, Linux 6.5)";
        (Mapped::Never, reason.into())
    }
}
