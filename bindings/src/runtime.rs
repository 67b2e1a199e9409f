//! The process's engine as Python sees it, and dictionary training.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ringloader_engine::PerProcess;
use ringloader_engine::codec;
use ringloader_engine::runtime::{self, Backend, Config};

use crate::errors::{ToPython, detached};

/// Set how the engine of this process will be made; call it before the first store is used.
///
/// Parameters
/// ----------
/// workers : int, optional
///     Threads that help with large batches. Default: one for each core that the process may use. With 0 or 1 every
///     batch is gathered by the thread that asks for it.
/// pin : bool, optional
///     Whether each worker stays on one core. Default: yes.
/// io : {"auto", "uring", "pread"}, optional
///     How to read. Default: `io_uring` where it works, pread otherwise.
///
/// What is not given comes from ``RINGLOADER_WORKERS``, ``RINGLOADER_PIN`` (0 or 1) and ``RINGLOADER_IO``.
///
/// Raises
/// ------
/// `RuntimeError`
///     If the engine is running already.
/// `ValueError`
///     For a value that means nothing.
#[pyfunction]
#[pyo3(signature = (workers=None, pin=None, io=None))]
pub(crate) fn configure(
    py: Python<'_>,
    workers: Option<usize>,
    pin: Option<bool>,
    io: Option<&str>,
) -> PyResult<()> {
    let io = match io {
        Some(name) => Backend::from_name(name).to_python(py)?,
        None => None,
    };
    runtime::configure(Config { workers, pin, io }).to_python(py)
}

/// What is running in this process, and why.
///
/// Returns
/// -------
/// dict
///     ``io``, how stores are read unless they were opened otherwise; ``io_reason``, why; ``workers``; ``pinned``;
///     ``cores``, which the process may use; ``pool_idle_bytes``, batch memory kept for the next batch.
#[pyfunction]
pub(crate) fn engine_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let info = detached(py, runtime::info)?;
    let dict = PyDict::new(py);
    dict.set_item("io", info.io.name())?;
    dict.set_item("io_reason", info.io_reason)?;
    dict.set_item("workers", info.workers)?;
    dict.set_item("pinned", info.pinned)?;
    dict.set_item("cores", info.cores)?;
    dict.set_item("pool_idle_bytes", info.pool_idle_bytes)?;
    Ok(dict)
}

/// Tells the log, once for each process, if io_uring is refused.
pub(crate) fn announce_stand_in(py: Python<'_>) -> PyResult<()> {
    static TOLD: PerProcess<()> = PerProcess::new();
    if TOLD.get().is_some() {
        return Ok(());
    }
    TOLD.get_or_init(|| ());
    let info = detached(py, runtime::info)?;
    if info.io_stands_in {
        let text = format!("reading with {} threads instead: {}", info.io.name(), info.io_reason);
        let logger = py.import("logging")?.call_method1("getLogger", ("ringloader",))?;
        logger.call_method1("warning", (text,))?;
    }
    Ok(())
}

/// Train a dictionary of at most `size` bytes on samples that lie one behind the other.
#[pyfunction]
pub(crate) fn train_dictionary<'py>(
    py: Python<'py>,
    samples: &Bound<'py, PyBytes>,
    lengths: Vec<usize>,
    size: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    if lengths.is_empty() {
        return Err(PyValueError::new_err("train_dict needs at least one record"));
    }
    let samples = samples.as_bytes();
    let trained = detached(py, || codec::train_dictionary(samples, &lengths, size))?;
    Ok(PyBytes::new(py, &trained))
}
