// SHA-256 (FIPS 180-4), to tell an artifact that was copied whole from one that was not.
#pragma once

#include <string>

#include "client/contract/files/whole_file.h"

namespace fedss {

std::string sha256(Bytes);  // 64 hexadecimal digits

}  // namespace fedss
