//! The one place where engine errors become Python exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use pyo3::exceptions::{PyFileNotFoundError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use ringloader_engine::Error;

static RECORD_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static INDEX_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The exception for an error of the engine.
pub(crate) fn to_python(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    let code = error.code();
    match (error, code) {
        (Error::NotFound { path }, _) => not_found(&path),
        (Error::IndexOutOfRange { .. }, Some(code)) => {
            raise(py, &INDEX_ERROR, "ZrecordIndexError", code, &text)
        }
        (Error::Io { source, .. }, Some(code)) => {
            let raised = raise(py, &RECORD_ERROR, "ZrecordError", code, &text);
            raised.set_cause(py, Some(source.into()));
            raised
        }
        (_, Some(code)) => raise(py, &RECORD_ERROR, "ZrecordError", code, &text),
        (Error::Internal(_) | Error::InvalidState(_), None) => PyRuntimeError::new_err(text),
        (_, None) => PyValueError::new_err(text),
    }
}

fn not_found(path: &Path) -> PyErr {
    // errno, text and file name, as open() raises it.
    const ENOENT: i32 = 2;
    PyFileNotFoundError::new_err((ENOENT, "store not found", path.display().to_string()))
}

fn raise(
    py: Python<'_>,
    class: &PyOnceLock<Py<PyType>>,
    name: &str,
    code: i32,
    text: &str,
) -> PyErr {
    let raised = class
        .import(py, "ringloader._errors", name)
        .and_then(|class| class.call1((code, text)))
        .map(PyErr::from_value);
    raised.unwrap_or_else(|import_failed| import_failed)
}

/// Calls the engine without the GIL. A panic there is a bug, and an exception like any other.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> ringloader_engine::Result<T> + Send,
) -> PyResult<T> {
    let called = py.detach(|| {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            Err(Error::Internal(text.unwrap_or_else(|| "a panic".into())))
        })
    });
    crate::log::hand_over(py);
    called.to_python(py)
}

/// Adds the Python boundary to the engine's results.
pub(crate) trait ToPython<T> {
    fn to_python(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> ToPython<T> for ringloader_engine::Result<T> {
    fn to_python(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| to_python(py, error))
    }
}
