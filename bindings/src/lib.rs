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
mod ragged;
mod runtime;

use pyo3::prelude::*;

/// The compiled part of ringloader.
#[pymodule(gil_used = false)]
mod _ringloader {
    #[pymodule_export]
    use super::dense::DenseStore;
    #[pymodule_export]
    use super::iteration::RecordIterator;
    #[pymodule_export]
    use super::ragged::RaggedStore;
    #[pymodule_export]
    use super::runtime::{configure, engine_info, train_dictionary};

    #[pymodule_export]
    const __VERSION__: &str = env!("CARGO_PKG_VERSION");
}
