// Who commands and transfers are inside the phone: user 2000, "shell", as on Android.
#pragma once

namespace guest {

// Gives up root for good, and adbd's exemption from the out-of-memory killer with it; exits if that fails.
void become_shell_user();

}  // namespace guest
