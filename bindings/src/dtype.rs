//! numpy dtypes as a store persists them, and back.

use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::exceptions::{PyImportError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use ringloader_engine::identity::{Dtype, EXTENSION_DTYPES, Field, FieldName};

/// The dtype that a caller means.
///
/// Raises `TypeError` for `None`, which numpy takes for float64 in some places.
pub(crate) fn given_dtype<'py>(dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArrayDescr>> {
    if dtype.is_none() {
        return Err(PyTypeError::new_err("dtype must be given, and is None"));
    }
    PyArrayDescr::new(dtype.py(), dtype)
}

/// The persisted form of `dtype`.
///
/// Raises `ValueError` for a dtype that would not come back as itself: objects, a bare
/// subarray, or fields that overlap or are out of order.
pub(crate) fn to_identity(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<Dtype> {
    let refuse =
        |why: &str| PyValueError::new_err(format!("dtype {dtype} cannot be stored: {why}"));
    if dtype.has_object() {
        return Err(refuse("objects have no bytes of their own"));
    }
    if dtype.has_subarray() {
        return Err(refuse("put the shape of a subarray into item_shape"));
    }
    let identity = describe(dtype)?;
    identity.item_bytes().map_err(|why| refuse(&why))?;
    if !from_identity(dtype.py(), &identity)?.eq(dtype)? {
        return Err(refuse("its fields overlap or are out of order"));
    }
    Ok(identity)
}

fn describe(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<Dtype> {
    let Some(names) = dtype.names() else {
        return Ok(Dtype::Plain(plain_name(dtype)?));
    };
    let all = dtype.getattr("fields")?;
    let mut fields = Vec::new();
    let mut end = 0;
    for name in names {
        let entry = all.get_item(&name)?;
        let offset: usize = entry.get_item(1)?.extract()?;
        pad(&mut fields, end, offset);
        let full = entry.get_item(0)?.cast_into::<PyArrayDescr>()?;
        let title = if entry.len()? > 2 { Some(entry.get_item(2)?) } else { None };
        let name = match title {
            Some(title) => FieldName::Titled(title.extract()?, name),
            None => FieldName::Name(name),
        };
        fields.push(if full.has_subarray() {
            let shape = full.shape().into_iter().map(|dim| dim as u64).collect();
            Field::Array(name, describe(&full.base())?, shape)
        } else {
            Field::Scalar(name, describe(&full)?)
        });
        end = offset + full.itemsize();
    }
    pad(&mut fields, end, dtype.itemsize());
    Ok(Dtype::Structured(fields))
}

/// numpy's `descr` writes padding as a nameless void field.
fn pad(fields: &mut Vec<Field>, end: usize, next: usize) {
    if let Some(bytes @ 1..) = next.checked_sub(end) {
        fields.push(Field::Scalar(
            FieldName::Name(String::new()),
            Dtype::Plain(format!("|V{bytes}")),
        ));
    }
}

fn plain_name(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<String> {
    let module: String = dtype.typeobj().getattr("__module__")?.extract()?;
    if module.starts_with("ml_dtypes") {
        let name: String = dtype.getattr("name")?.extract()?;
        if EXTENSION_DTYPES.iter().any(|(known, _)| *known == name) {
            return Ok(name);
        }
        return Err(PyValueError::new_err(format!("dtype {name} of ml_dtypes cannot be stored")));
    }
    dtype.getattr("str")?.extract()
}

/// The dtype that was persisted as `identity`.
///
/// Raises `ImportError` for an extension type without its package, `ValueError` or `TypeError`
/// for what numpy does not know, or knows with another size.
pub(crate) fn from_identity<'py>(
    py: Python<'py>,
    identity: &Dtype,
) -> PyResult<Bound<'py, PyArrayDescr>> {
    let dtype = build(py, identity)?;
    let bytes = identity.item_bytes().map_err(PyValueError::new_err)?;
    // Arrays are made over memory that the engine has measured with its own size.
    if dtype.itemsize() as u64 != bytes || dtype.has_object() {
        return Err(PyValueError::new_err(format!(
            "{dtype} has {} bytes here, and {bytes} in the store",
            dtype.itemsize()
        )));
    }
    Ok(dtype)
}

fn build<'py>(py: Python<'py>, identity: &Dtype) -> PyResult<Bound<'py, PyArrayDescr>> {
    match identity {
        Dtype::Plain(name) if EXTENSION_DTYPES.iter().any(|(known, _)| known == name) => {
            extension(py, name)
        }
        Dtype::Plain(name) => PyArrayDescr::new(py, name.as_str()),
        Dtype::Structured(fields) => structured(py, fields),
    }
}

fn extension<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArrayDescr>> {
    let found = py.import("ml_dtypes").and_then(|module| module.getattr(name));
    let class = found.map_err(|cause| {
        let error = PyImportError::new_err(format!(
            "dtype {name} needs the package ml_dtypes: pip install ml_dtypes"
        ));
        error.set_cause(py, Some(cause));
        error
    })?;
    PyArrayDescr::new(py, class)
}

fn structured<'py>(py: Python<'py>, fields: &[Field]) -> PyResult<Bound<'py, PyArrayDescr>> {
    let (names, formats) = (PyList::empty(py), PyList::empty(py));
    let (offsets, titles) = (PyList::empty(py), PyList::empty(py));
    let mut end = 0;
    for field in fields {
        let (name, dtype, shape) = match field {
            Field::Scalar(name, dtype) => (name, dtype, None),
            Field::Array(name, dtype, shape) => (name, dtype, Some(shape)),
        };
        let base = build(py, dtype)?;
        let full = match shape {
            None => base,
            Some(shape) => PyArrayDescr::new(py, (base, PyTuple::new(py, shape)?))?,
        };
        let (title, name) = match name {
            FieldName::Name(name) => (None, name),
            FieldName::Titled(title, name) => (Some(title), name),
        };
        if !name.is_empty() {
            names.append(name)?;
            titles.append(title)?;
            offsets.append(end)?;
            formats.append(&full)?;
        }
        end += full.itemsize();
    }
    let layout = PyDict::new(py);
    layout.set_item("names", names)?;
    layout.set_item("formats", formats)?;
    layout.set_item("offsets", offsets)?;
    layout.set_item("itemsize", end)?;
    if fields.iter().any(|field| {
        matches!(
            field,
            Field::Scalar(FieldName::Titled(..), _) | Field::Array(FieldName::Titled(..), _, _)
        )
    }) {
        layout.set_item("titles", titles)?;
    }
    PyArrayDescr::new(py, layout)
}
