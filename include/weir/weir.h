/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

/* All of weir's public API. Start with weir/cache.h (what to keep and where)
 * and weir/rank.h (moving the bytes). */

#include <weir/base.h>
#include <weir/cache.h>
#include <weir/channel.h>
#include <weir/copy.h>
#include <weir/cpu_device.h>
#include <weir/cuda.h>
#include <weir/device.h>
#include <weir/expert_cache.h>
#include <weir/export.h>
#include <weir/gather.h>
#include <weir/host_share.h>
#include <weir/key.h>
#include <weir/lifecycle.h>
#include <weir/order.h>
#include <weir/page_pool.h>
#include <weir/pin.h>
#include <weir/policy.h>
#include <weir/radix.h>
#include <weir/rank.h>
#include <weir/shape.h>
#include <weir/transfer.h>
#include <weir/version.h>

#endif
