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

/// The backend to use where nothing else was asked for a store, and why that one.
pub(crate) fn choose(asked: Option<Backend>) -> Result<(Backend, String), String> {
    let uring = ringloader_uring::probe();
    match (asked, uring) {
        (Some(Backend::Pread), _) => {
            Ok((Backend::Pread, "asked for by configure or RINGLOADER_IO".into()))
        }
        (Some(Backend::Uring), Err(why)) => Err(format!("io='uring' is not available: {why}")),
        (Some(Backend::Uring), Ok(features)) => {
            Ok((Backend::Uring, format!("asked for by configure or RINGLOADER_IO; {features}")))
        }
        (None, Ok(features)) => Ok((Backend::Uring, format!("io_uring works here; {features}"))),
        (None, Err(why)) => {
            if cfg!(target_os = "linux") {
                log::warn!("io_uring cannot be used, reading with pread instead: {why}");
            }
            Ok((Backend::Pread, format!("io_uring cannot be used: {why}")))
        }
    }
}
