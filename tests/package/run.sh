#!/bin/bash
# The C++ package as a stranger meets it: headers alone, installed static and shared, pkg-config,
# vendored, from C and from Rust. Without nlohmann/json nothing is planned from C, and the rest is
# tried all the same. Usage: tests/package/run.sh [work directory]
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
work=${1:-$(mktemp -d)}
mkdir -p "$work"
cc=${CC:-cc}
cxx=${CXX:-c++}
warnings=(-Wall -Wextra -Wpedantic -Werror)
generator=()
command -v ninja > /dev/null && generator=(-G Ninja)

step() { printf '\n== %s\n' "$*"; }

step "each header compiles alone"
for compiler in g++-12 clang++-16; do
  command -v $compiler > /dev/null || { echo "no $compiler: skipped"; continue; }
  for header in $(cd "$source_dir/csrc/include" && find kvplan -name '*.h'); do
    echo "#include <$header>" |
      $compiler -std=c++20 "${warnings[@]}" -I"$source_dir/csrc/include" -fsyntax-only -x c++ -
  done
done
echo '#include <kvplan/c_api.h>' |
  $cc -std=c99 "${warnings[@]}" -I"$source_dir/csrc/include" -fsyntax-only -x c -

step "public headers include only the standard library and kvplan"
# The C++ standard library's headers have no dot in their names.
if grep -rhE '^ *# *include' "$source_dir"/csrc/include/kvplan |
  grep -vE '"kvplan/([a-z_]+/)?[a-z_]+\.h"|<[a-z_]+>|<std(int|def)\.h>'; then
  echo "a public header includes the above" && exit 1
fi

for kind in static shared; do
  step "install, $kind"
  prefix=$work/$kind
  cmake -S "$source_dir" -B "$work/build-$kind" "${generator[@]}" -DKVPLAN_CUDA=OFF -DKVPLAN_UNITY=ON \
    -DBUILD_SHARED_LIBS=$([ $kind = shared ] && echo ON || echo OFF) \
    -DCMAKE_INSTALL_PREFIX="$prefix" > "$work/configure-$kind.log"
  cmake --build "$work/build-$kind" > "$work/build-$kind.log"
  no_json=$(grep -q 'reads requests: OFF' "$work/configure-$kind.log" && echo no-json || true)
  cmake --install "$work/build-$kind" --component kvplan_devel > /dev/null
  libdir=$(dirname "$(find "$prefix" -name 'libkvplan.*' | head -1)")

  # Whoever moves the tree must not notice.
  rm -rf "$prefix-moved" # of the last time
  mv "$prefix" "$prefix-moved"
  prefix=$prefix-moved
  libdir=${libdir/$work\/$kind/$prefix}

  step "examples from the install prefix, $kind"
  cmake -S "$source_dir/examples/cpp" -B "$work/examples-$kind" "${generator[@]}" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" > /dev/null
  cmake --build "$work/examples-$kind" > /dev/null
  "$work/examples-$kind/engine"
  "$work/examples-$kind/price_and_allocate"

  step "pkg-config, $kind"
  export PKG_CONFIG_PATH=$libdir/pkgconfig
  [ "$(pkg-config --modversion kvplan)" = "$(sed -n 's/^ *VERSION \([0-9.]*\)$/\1/p' "$source_dir/CMakeLists.txt")" ]
  static_flag=$([ $kind = static ] && echo --static || true)
  "$cc" -std=c99 "${warnings[@]}" "$source_dir/tests/package/c_api_test.c" -o "$work/c_api_$kind" \
    $(pkg-config --cflags kvplan) $(pkg-config --libs $static_flag kvplan) -Wl,-rpath,"$libdir"
  "$work/c_api_$kind" $no_json
done

step "an installed kvplan asks for no JSON library"
if grep -rl --include='*.cmake' --include='*.pc' --include='*.h' nlohmann "$work"/*-moved; then
  echo "the above name a dependency of one private folder" && exit 1
fi

step "symbols of the shared library"
library=$(find "$work/shared-moved" -name 'libkvplan.so' | head -1)
nm -D --defined-only -C "$library" | awk '$2 ~ /[TDBR]/' > "$work/symbols"
grep -q ' kvplan_plan_create_from_json$' "$work/symbols"
if grep -vE ' (kvplan::|kvplan_|typeinfo|vtable|non-virtual)' "$work/symbols"; then
  echo "the library exports the above" && exit 1
fi
if grep -E 'anonymous namespace|kvplan::(detail|checking|c_api)::' "$work/symbols"; then
  echo "the library exports the above" && exit 1
fi

# The second without a JSON library, as on a machine that has none.
for vendor in add_subdirectory FetchContent; do
  json=$([ $vendor = FetchContent ] && echo OFF || echo AUTO)
  step "vendored by $vendor, KVPLAN_JSON=$json"
  cmake -S "$source_dir/tests/package/consumer" -B "$work/consumer-$vendor" "${generator[@]}" \
    -DKVPLAN_SOURCE="$source_dir" -DKVPLAN_VENDOR=$vendor -DKVPLAN_CUDA=OFF -DKVPLAN_UNITY=ON \
    -DKVPLAN_JSON=$json > "$work/configure-$vendor.log"
  cmake --build "$work/consumer-$vendor" > /dev/null
  no_json=$(grep -q 'reads requests: OFF' "$work/configure-$vendor.log" && echo no-json || true)
  "$work/consumer-$vendor/c_api_test" $no_json
done

step "vendored in an engine that exports its own targets"
cmake -S "$source_dir/tests/package/consumer" -B "$work/consumer-FetchContent" -DKVPLAN_INSTALL=ON \
  -DCMAKE_INSTALL_PREFIX="$work/engine" > /dev/null
cmake --build "$work/consumer-FetchContent" > /dev/null
cmake --install "$work/consumer-FetchContent" > /dev/null
cmake -S "$source_dir/tests/package/engine_user" -B "$work/engine-user" "${generator[@]}" \
  -DCMAKE_PREFIX_PATH="$work/engine" > /dev/null
cmake --build "$work/engine-user" > /dev/null
"$work/engine-user/user"

step "Rust: the crate builds the library, and a small engine runs on it"
if command -v cargo > /dev/null; then
  # Debian's librust-cc-dev, where crates are not to be downloaded.
  crates=()
  [ -d /usr/share/cargo/registry ] &&
    crates=(--offline --config 'source.crates-io.replace-with="debian"'
      --config 'source.debian.directory="/usr/share/cargo/registry"')
  CARGO_TARGET_DIR=$work/cargo cargo test -q --manifest-path "$source_dir/csrc/c_api/rust/Cargo.toml" \
    "${crates[@]}"
else
  echo "no cargo: skipped"
fi
printf '\nall right\n'
