//! The numpy face of the engine: Python arguments in, numpy arrays out. Everything that is a
//! store is in `ringloader-engine`; this crate normalises, releases the GIL, calls it, and maps
//! its errors.

// Documentation of Python classes is numpy-style reStructuredText, not rustdoc.
#![allow(clippy::doc_markdown)]
// PyO3 hands arguments over by value.
#![allow(clippy::needless_pass_by_value)]

mod array;
mod dense;
mod dtype;
mod errors;
mod handle;
mod index;
mod iteration;
mod log;
mod ragged;
mod runtime;

/// The compiled part of ringloader.
#[pyo3::pymodule(gil_used = false)]
mod _ringloader {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::dense::DenseStore;
    #[pymodule_export]
    use super::iteration::RecordIterator;
    #[pymodule_export]
    use super::ragged::RaggedStore;
    #[pymodule_export]
    use super::runtime::{configure, engine_info, train_dictionary};

    /// Runs when the module is imported.
    #[expect(clippy::unnecessary_wraps, reason = "PyO3 asks for a result")]
    #[pymodule_init]
    fn begin(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::log::begin();
        Ok(())
    }

    #[pymodule_export]
    const __VERSION__: &str = env!("CARGO_PKG_VERSION");
}
