#include "token_hash/libcrypto.h"

#include <optional>

#include "kvplan/errors.h"

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#endif

namespace kvplan {
namespace {

#if defined(__unix__) || defined(__APPLE__)
// By version: the unversioned name belongs to development packages, and macOS ends a process that
// asks for it.
constexpr const char* kNames[] = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so",
                                  "libcrypto.3.dylib", "libcrypto.1.1.dylib"};

std::optional<Sha256> load() {
  for (const char* name : kNames) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    Sha256 functions{reinterpret_cast<Sha256::Init>(dlsym(library, "SHA256_Init")),
                     reinterpret_cast<Sha256::Update>(dlsym(library, "SHA256_Update")),
                     reinterpret_cast<Sha256::Final>(dlsym(library, "SHA256_Final"))};
    if (functions.init != nullptr && functions.update != nullptr && functions.final != nullptr) {
      return functions;
    }
    dlclose(library);
  }
  return std::nullopt;
}
#else
std::optional<Sha256> load() { return std::nullopt; }
#endif

}  // namespace

const Sha256& libcrypto_sha256() {
  static const std::optional<Sha256> loaded = load();
  if (!loaded) {
    throw Unsupported(
        "token hashes need OpenSSL's libcrypto (libcrypto.so.3 or libcrypto.so.1.1), which is not "
        "installed or has no low-level SHA-256");
  }
  return *loaded;
}

}  // namespace kvplan
