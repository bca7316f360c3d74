//! Builds the C++ library, and declares the functions and structs of kvplan/c_api.h for Rust.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let csrc = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("../..");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    println!("cargo:rerun-if-changed={}", csrc.display());
    let header = fs::read_to_string(csrc.join("include/kvplan/c_api.h")).unwrap();
    fs::write(out.join("c_api.rs"), declarations(&header)).unwrap();

    let mut build = cc::Build::new();
    build
        .cpp(true)
        .flag_if_supported("-std=c++20")
        .flag_if_supported("/std:c++20");
    build
        .flag_if_supported("-fvisibility=hidden")
        .warnings(false);
    build.include(&csrc).include(csrc.join("include"));
    build.define(
        "KVPLAN_VERSION",
        &*format!("\"{}\"", env::var("CARGO_PKG_VERSION").unwrap()),
    );
    // Requests are read with nlohmann/json, which is where the compiler or this variable finds it.
    println!("cargo:rerun-if-env-changed=KVPLAN_JSON_INCLUDE");
    if let Ok(folder) = env::var("KVPLAN_JSON_INCLUDE") {
        build.include(folder);
    }
    let has_json = finds_json(&build, &out);
    for folder in folders(&csrc) {
        let sources = sources(&folder, has_json);
        if sources.is_empty() {
            continue;
        }
        // One unit a folder: half the work.
        let name = folder
            .strip_prefix(&csrc)
            .unwrap()
            .to_str()
            .unwrap()
            .replace(['/', '\\'], "_");
        let unit = out.join(name + ".cpp");
        let includes = sources
            .iter()
            .map(|s| format!("#include \"{}\"\n", s.display()));
        fs::write(&unit, includes.collect::<String>()).unwrap();
        build.file(unit);
    }
    build.compile("kvplan");
    if env::var("CARGO_CFG_TARGET_OS").unwrap() == "linux" {
        println!("cargo:rustc-link-lib=dl"); // libcrypto is loaded where tokens are hashed
    }
}

fn folders(csrc: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = [
        "planning",
        "check",
        "c_api",
        "json_request",
        "block_pool",
        "cache_manager",
        "token_hash",
    ]
    .iter()
    .chain(&["device", "device/cpu"])
    .map(|folder| csrc.join(folder))
    .collect();
    let planning = fs::read_dir(csrc.join("planning"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    folders.extend(planning.filter(|path| path.is_dir()));
    folders
}

fn sources(folder: &Path, has_json: bool) -> Vec<PathBuf> {
    let mut sources: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    sources.retain(|path| {
        path.extension()
            .map_or(false, |extension| extension == "cpp")
    });
    let left_out = if has_json { "json_text_absent.cpp" } else { "json_text.cpp" };
    sources.retain(|path| !path.ends_with(left_out));
    sources.sort();
    sources
}

fn finds_json(build: &cc::Build, out: &Path) -> bool {
    let probe = out.join("json_probe.cpp");
    fs::write(&probe, "#include <nlohmann/json.hpp>\n").unwrap();
    build
        .clone()
        .file(&probe)
        .cargo_metadata(false)
        .try_compile("json_probe")
        .is_ok()
}

// The header.

fn declarations(header: &str) -> String {
    let mut out = String::new();
    let mut text = String::new();
    for line in without_comments(header).lines() {
        if let Some(definition) = line.strip_prefix("#define KVPLAN_") {
            let mut words = definition.split_whitespace();
            if let (Some(name), Some(Ok(value))) =
                (words.next(), words.next().map(str::parse::<i32>))
            {
                out += &format!("pub const KVPLAN_{name}: i32 = {value};\n");
            }
        } else if !line.starts_with('#') && !line.starts_with("extern") {
            text += line;
            text.push(' ');
        }
    }
    for statement in statements(&text) {
        out += &declaration(&statement);
    }
    out
}

fn without_comments(header: &str) -> String {
    let mut parts = header.split("/*");
    let mut text = parts.next().unwrap().to_string();
    for part in parts {
        text += part.split_once("*/").unwrap().1;
    }
    text
}

/// Split at semicolons outside braces.
fn statements(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut depth = 0;
    for c in text.chars() {
        depth += (c == '{') as i32 - (c == '}') as i32;
        if c == ';' && depth == 0 {
            all.push(String::new());
        } else {
            all.last_mut().unwrap().push(c);
        }
    }
    all.pop();
    all
}

fn declaration(statement: &str) -> String {
    let statement = statement.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(function) = statement.strip_prefix("KVPLAN_C_API ") {
        let (head, parameters) = function.split_once('(').unwrap();
        let (result, name) = typed(head);
        let result = if result == "c_void" {
            String::new()
        } else {
            format!(" -> {result}")
        };
        let parameters = parameters_of(parameters);
        format!("extern \"C\" {{ pub fn {name}({parameters}){result}; }}\n")
    } else if let Some(callback) = statement.strip_prefix("typedef void (*") {
        let (name, parameters) = callback.split_once(")(").unwrap();
        let parameters = parameters_of(parameters);
        format!("pub type {name} = Option<unsafe extern \"C\" fn({parameters})>;\n")
    } else if let Some(body) = statement.strip_prefix("typedef enum ") {
        let (name, values) = body.split_once(" {").unwrap();
        let values = values
            .split('}')
            .next()
            .unwrap()
            .split(',')
            .filter(|v| v.contains('='));
        let constants = values.map(|value| {
            let (constant, number) = value.split_once('=').unwrap();
            format!(
                "pub const {}: {name} = {};\n",
                constant.trim(),
                number.trim()
            )
        });
        format!("pub type {name} = i32;\n{}", constants.collect::<String>())
    } else if let Some(body) = statement.strip_prefix("typedef struct ") {
        match body.split_once(" {") {
            None => format!(
                "#[repr(C)] pub struct {} {{ _private: [u8; 0] }}\n",
                body.split(' ').next().unwrap()
            ),
            Some((name, fields)) => {
                let fields = fields.split('}').next().unwrap().split(';').map(str::trim);
                let fields = fields.filter(|f| !f.is_empty()).map(|field| {
                    let (kind, name) = typed(field);
                    format!("pub {name}: {kind}, ")
                });
                let fields = fields.collect::<String>();
                format!(
                    "#[repr(C)] #[derive(Clone, Copy, Debug)] pub struct {name} {{ {fields} }}\n"
                )
            }
        }
    } else {
        panic!("kvplan/c_api.h: not understood: {statement}");
    }
}

fn parameters_of(list: &str) -> String {
    let list = list.trim_end_matches(')');
    if list == "void" {
        return String::new();
    }
    let parameters = list.split(',').map(|parameter| {
        let (kind, name) = typed(parameter);
        format!("{name}: {kind}")
    });
    parameters.collect::<Vec<_>>().join(", ")
}

/// A C declarator as type and name in Rust.
fn typed(declarator: &str) -> (String, String) {
    let (kind, name) = declarator.trim().rsplit_once(' ').unwrap();
    let stars = kind.matches('*').count();
    let is_const = kind.starts_with("const ");
    let base = kind
        .trim_start_matches("const ")
        .trim_end_matches(['*', ' ']);
    let mut kind = match base {
        "char" => "c_char",
        "void" => "c_void",
        "double" => "f64",
        "size_t" => "usize",
        "int64_t" => "i64",
        "int32_t" => "i32",
        "uint16_t" => "u16",
        other => other,
    }
    .to_string();
    for level in 0..stars {
        let access = if is_const && level == 0 {
            "const"
        } else {
            "mut"
        };
        kind = format!("*{access} {kind}");
    }
    match name.split_once('[') {
        Some((name, count)) => (
            format!("[{kind}; {}]", count.trim_end_matches(']')),
            name.to_string(),
        ),
        None => (kind, name.to_string()),
    }
}
