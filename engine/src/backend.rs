//! The ways to read batches, which of them a machine has, and which of them to use.

use crate::error::{Error, Result};

/// A way to read batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// `io_uring` (Linux).
    Uring,
    /// Positional reads, on a pool of threads when the data is cold.
    Pread,
}

impl Backend {
    /// The backend's name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Pread => "pread",
        }
    }

    /// The backend of that name; `None` is `"auto"`, the engine's choice.
    pub fn from_name(name: &str) -> Result<Option<Self>> {
        match name {
            "auto" => Ok(None),
            "uring" => Ok(Some(Self::Uring)),
            "pread" => Ok(Some(Self::Pread)),
            _ => Err(Error::InvalidArgument(format!(
                "unknown io {name:?}: expected 'auto', 'uring' or 'pread'"
            ))),
        }
    }
}

/// Checks that the backend that was asked for can be had.
pub(crate) fn require(backend: Option<Backend>) -> Result<()> {
    match backend {
        Some(name @ Backend::Uring) => ringloader_uring::probe().map(drop).map_err(|why| {
            Error::BackendUnavailable { name: name.name(), reason: why.to_string() }
        }),
        Some(Backend::Pread) | None => Ok(()),
    }
}

/// A backend, and why that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) backend: Backend,
    pub(crate) reason: String,
    /// Whether it stands in for a better one that this system has and refuses.
    pub(crate) stands_in: bool,
}

/// The backend to use where nothing else was asked for a store, and why that one.
pub(crate) fn choose(asked: Option<Backend>) -> Result<Choice, String> {
    let chosen = |backend, reason| Ok(Choice { backend, reason, stands_in: false });
    if asked == Some(Backend::Pread) {
        return chosen(Backend::Pread, "asked for by configure or RINGLOADER_IO".into());
    }
    match (asked, ringloader_uring::probe()) {
        (Some(_), Err(why)) => Err(format!("io='uring' is not available: {why}")),
        (Some(_), Ok(features)) => {
            chosen(Backend::Uring, format!("asked for by configure or RINGLOADER_IO; {features}"))
        }
        (None, Ok(features)) => chosen(Backend::Uring, format!("io_uring works here, {features}")),
        (None, Err(why)) => Ok(Choice {
            backend: Backend::Pread,
            reason: format!("io_uring cannot be used: {why}"),
            stands_in: cfg!(target_os = "linux"),
        }),
    }
}
