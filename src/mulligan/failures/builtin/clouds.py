"""Rules about provider codes of cloud and AI services. They are more specific than the status."""

from __future__ import annotations

from mulligan.failures.builtin.protocols import BILLING, DAILY_QUOTA, REQUEST_TOO_LARGE
from mulligan.failures.rules import row, split_names

_AWS = (
    row(
        "aws.throttled",
        "RATE_LIMITED",
        provider_code=split_names(
            """
            Throttling ThrottlingException ThrottledException RequestThrottled RequestThrottledException
            RequestLimitExceeded BandwidthLimitExceeded SlowDown SlowDownRead SlowDownWrite
            ProvisionedThroughputExceededException TooManyRequestsException TooManyRequests LimitExceededException
            PriorRequestNotComplete TransactionInProgressException EC2ThrottledException MaxMessageRateExceeded
            RequestRateTooLarge Server.RequestLimitExceeded XMinioServerNotInitialized
            """
        ),
    ),
    row(
        "aws.daily",
        "QUOTA",
        provider_code=split_names(
            "ThrottlingException Throttling LimitExceededException TooManyRequestsException"
        ),
        message=DAILY_QUOTA,
    ),
    row(
        "aws.limit",
        "QUOTA",
        provider_code=("LimitExceededException", "Throttling"),
        message=(
            r"\bdaily message quota\b",
            r"\baccount limit\b",
            r"\bmaximum number of\b",
            r"\b(?:cannot|can't) exceed\b",
        ),
    ),
    row(
        "aws.quota",
        "QUOTA",
        provider_code=split_names(
            """
            CodeStorageExceededException StorageQuotaExceeded DBInstanceQuotaExceeded SnapshotQuotaExceeded
            ServiceQuotaExceededException ServiceLimitExceeded QuotaExceededException VcpuLimitExceeded
            InstanceLimitExceeded DailyQuotaExceeded AccountSendingPausedException TooManyBuckets
            Client.InstanceLimitExceeded ResourceLimitExceeded AddressLimitExceeded MaxSpotInstanceCountExceeded
            """
        ),
    ),
    row(
        "aws.no-room",
        "SERVICE_FULL",
        provider_code=split_names(
            """
            InsufficientInstanceCapacity InsufficientHostCapacity Server.InsufficientInstanceCapacity
            InsufficientCapacity XMinioStorageFull CapacityNotAvailable InsufficientDBInstanceCapacity
            InsufficientDBClusterCapacityFault InsufficientCacheClusterCapacity
            """
        ),
    ),
    row(
        "aws.timeout",
        "TIMEOUT",
        provider_code=split_names(
            """
            RequestTimeout RequestTimeoutException RequestExpiredException ModelTimeoutException OperationTimedOut
            GatewayTimeout
            """
        ),
    ),
    row(
        "aws.unavailable",
        "HTTP_5XX",
        provider_code=split_names(
            """
            InternalError InternalFailure InternalServerError InternalServerException ServiceUnavailable
            ServiceUnavailableException ServiceException ServiceFailure Unavailable ModelNotReadyException
            XMinioReadQuorum XMinioWriteQuorum KMSInternalException ServiceInternal ServerInternal
            """
        ),
    ),
    row(
        "aws.busy",
        "BUSY",
        provider_code=split_names(
            """
            OperationAborted ConflictException TransactionConflictException ConcurrentModificationException
            ResourceInUseException ResourceConflictException IDPCommunicationError CodeArtifactUserPendingException
            ResourceNotReadyException EniLimitReached DependencyViolation PendingVerification
            """
        ),
    ),
    row(
        "aws.conditional",
        "ALREADY_EXISTS",
        provider_code=split_names(
            """
            ConditionalCheckFailedException PreconditionFailed BucketAlreadyExists BucketAlreadyOwnedByYou
            EntityAlreadyExists ResourceAlreadyExistsException
            """
        ),
    ),
    row(
        "aws.retry-once",
        "BAD_TRANSFER",
        provider_code=split_names(
            """
            BadDigest IncompleteBody ConditionalRequestConflict XAmzContentChecksumMismatch XAmzContentSHA256Mismatch
            IncompleteMessageBody
            """
        ),
    ),
    row(
        "aws.auth",
        "AUTH",
        provider_code=split_names(
            """
            ExpiredToken ExpiredTokenException InvalidAccessKeyId SignatureDoesNotMatch InvalidClientTokenId
            UnrecognizedClientException InvalidToken TokenRefreshRequired AuthFailure MissingAuthenticationToken
            IncompleteSignature InvalidSignatureException NotAuthorizedException RequestTimeTooSkewed RequestExpired
            InvalidIdentityToken InvalidSecurity AuthorizationHeaderMalformed CredentialsNotSupported OptInRequired
            UnauthorizedException AuthenticationFailed InvalidAuthenticationInfo ExpiredAuthenticationToken
            InvalidAuthenticationToken
            """
        ),
    ),
    row(
        "aws.denied",
        "ACCESS_DENIED",
        provider_code=split_names(
            """
            AccessDenied AccessDeniedException AllAccessDisabled AccountProblem UnauthorizedOperation
            AuthorizationError AuthorizationFailed AuthorizationPermissionMismatch AuthorizationFailure
            KMSAccessDeniedException UnauthorizedAccess Client.UnauthorizedOperation MessageRejected
            MailFromDomainNotVerifiedException
            """
        ),
    ),
    row(
        "aws.missing",
        "MISSING",
        provider_code=split_names(
            """
            NoSuchKey NoSuchVersion NoSuchUpload NoSuchEntity ResourceNotFoundException BlobNotFound
            NotFoundException QueueDoesNotExist AWS.SimpleQueueService.NonExistentQueue InvalidInstanceID.NotFound
            InvalidAMIID.NotFound ParameterNotFound ResourceNotFound KeyNotFound DBInstanceNotFound
            Client.InvalidInstanceID.NotFound ImageNotFound
            """
        ),
    ),
    row(
        "aws.invalid",
        "INVALID_INPUT",
        provider_code=split_names(
            """
            InvalidObjectState EntityTooLarge EntityTooSmall InvalidPart InvalidPartOrder InvalidArgument
            InvalidRequest InvalidRange KeyTooLongError MalformedXML MalformedPolicyDocument ValidationException
            ValidationError InvalidParameterValue InvalidParameterCombination InvalidParameterException
            MissingParameter InvalidInput SerializationException InvalidContentType RequestEntityTooLargeException
            UnsupportedMediaFormatException InvalidImageFormatException ImageTooLargeException BadRequestException
            InvalidS3ObjectException InvalidDigest InvalidBlobOrBlock InvalidQueryParameterValue MessageTooLong
            BatchRequestTooLong InvalidMessageContents ParamValidationError ItemCollectionSizeLimitExceededException
            """
        ),
    ),
    row(
        "aws.misconfigured",
        "MISCONFIGURED",
        provider_code=split_names(
            """
            NoSuchBucket PermanentRedirect IllegalLocationConstraintException InvalidBucketName MethodNotAllowed
            NoSuchBucketPolicy ContainerNotFound UnsupportedOperation NotImplemented AccountIsDisabled InvalidAction
            UnknownOperationException InvalidRegion InvalidUri ResourceNotSupported InvalidResourceName
            ContainerDisabled BucketNotEmpty InvalidBucketState
            """
        ),
    ),
)

_GOOGLE = (
    row(
        "google.quota-long",
        "QUOTA",
        provider_code=split_names(
            "RATE_LIMIT_EXCEEDED rateLimitExceeded userRateLimitExceeded quotaExceeded"
        ),
        message=DAILY_QUOTA,
    ),
    row(
        "google.rate",
        "RATE_LIMITED",
        provider_code=split_names(
            """
            RATE_LIMIT_EXCEEDED rateLimitExceeded userRateLimitExceeded concurrentLimitExceeded
            uploadRateLimitExceeded sharingRateLimitExceeded jobRateLimitExceeded
            """
        ),
    ),
    row(
        "google.quota",
        "QUOTA",
        provider_code=split_names(
            """
            dailyLimitExceeded dailyLimitExceededUnreg quotaExceeded storageQuotaExceeded billingNotEnabled
            BILLING_DISABLED billingTierLimitExceeded QUOTA_EXCEEDED CONSUMER_SUSPENDED downloadQuotaExceeded
            GenerateRequestsPerDay*
            """
        ),
    ),
    row(
        "google.auth",
        "AUTH",
        provider_code=split_names(
            """
            API_KEY_INVALID ACCESS_TOKEN_EXPIRED ACCESS_TOKEN_SCOPE_INSUFFICIENT authError invalid_grant
            invalid_client unauthorized_client CREDENTIALS_MISSING API_KEY_SERVICE_BLOCKED
            API_KEY_HTTP_REFERRER_BLOCKED keyInvalid invalidCredentials ACCOUNT_STATE_INVALID
            """
        ),
    ),
    row(
        "google.denied",
        "ACCESS_DENIED",
        provider_code=split_names(
            """
            SERVICE_DISABLED accessNotConfigured insufficientPermissions IAM_PERMISSION_DENIED
            insufficientFilePermissions appNotAuthorizedToFile cannotDownloadAbusiveFile forbidden accessDenied
            youtubeSignupRequired
            """
        ),
    ),
    row(
        "google.backend",
        "HTTP_5XX",
        provider_code=split_names(
            """
            backendError internalError backendNotConnected jobBackendError jobInternalError transientError
            tableUnavailable
            """
        ),
    ),
    row(
        "google.missing",
        "MISSING",
        provider_code=split_names(
            """
            videoNotFound notFound fileNotFound playlistNotFound channelNotFound resourceNotFound
            """
        ),
    ),
    row(
        "google.content",
        "REFUSED_CONTENT",
        provider_code=split_names("SAFETY RECITATION PROHIBITED_CONTENT BLOCKLIST SPII"),
    ),
    row(
        "google.invalid",
        "INVALID_INPUT",
        provider_code=split_names(
            """
            invalidQuery invalidParameter uploadTooLarge INVALID_PROJECT invalidVideoMetadata
            """
        ),
    ),
)

_AI = (
    row(
        "ai.quota",
        "QUOTA",
        provider_code=split_names(
            """
            insufficient_quota billing_hard_limit_reached billing_not_active access_terminated account_deactivated
            quota_exceeded credit_balance_too_low billing_error InsufficientQuota
            """
        ),
    ),
    row(
        "ai.quota-money",
        "QUOTA",
        provider_code=split_names(
            "invalid_request_error rate_limit_exceeded rate_limit_error tokens requests"
        ),
        message=BILLING,
    ),
    row(
        "ai.one-too-large",
        "TOO_LARGE",
        provider_code=split_names("rate_limit_exceeded tokens rate_limit_error"),
        message=REQUEST_TOO_LARGE,
    ),
    row(
        "ai.quota-long",
        "QUOTA",
        provider_code=("rate_limit_exceeded",),
        message=r"\b(?:per month|monthly)\b",
    ),
    row(
        "ai.rate",
        "RATE_LIMITED",
        provider_code=split_names(
            """
            rate_limit_exceeded rate_limit_error rate_limit rate_limited too_many_requests ratelimited
            """
        ),
    ),
    row(
        "ai.overloaded",
        "HTTP_5XX",
        provider_code=split_names(
            """
            overloaded_error server_error internal_server_error engine_overloaded model_overloaded internal_error
            service_unavailable api_connection_error server_overloaded no_healthy_upstream
            """
        ),
    ),
    row(
        "ai.timeout",
        "TIMEOUT",
        provider_code=split_names("timeout_error request_timeout model_timeout gateway_timeout"),
    ),
    row(
        "ai.auth",
        "AUTH",
        provider_code=split_names(
            """
            invalid_api_key authentication_error invalid_authentication incorrect_api_key invalid_organization
            no_api_key token_expired invalid_token invalid_auth not_authed token_revoked account_inactive
            expired_token auth_error unauthorized
            """
        ),
    ),
    row(
        "ai.denied",
        "ACCESS_DENIED",
        provider_code=split_names(
            """
            permission_error permission_denied unsupported_country_region_territory missing_scope no_permission
            access_denied organization_restricted restricted_action ip_not_authorized team_access_not_granted
            """
        ),
    ),
    row(
        "ai.content",
        "REFUSED_CONTENT",
        provider_code=split_names(
            """
            content_policy_violation content_filter moderation_blocked content_policy content_blocked
            ResponsibleAIPolicyViolation sensitive_content DataInspectionFailed
            """
        ),
    ),
    row(
        "ai.too-long",
        "TOO_LARGE",
        provider_code=split_names(
            """
            context_length_exceeded string_above_max_length max_tokens_exceeded msg_too_long request_too_large
            context_window_exceeded file_too_large
            """
        ),
    ),
    row(
        "ai.model",
        "MISCONFIGURED",
        provider_code=split_names(
            """
            model_not_found unsupported_model model_not_supported deployment_not_found DeploymentNotFound
            unsupported_parameter model_deprecated not_found_error model_decommissioned
            """
        ),
    ),
    row(
        "ai.invalid",
        "INVALID_INPUT",
        provider_code=split_names(
            """
            invalid_value invalid_image_format invalid_image_url invalid_prompt invalid_type
            missing_required_parameter unknown_parameter invalid_file unsupported_file image_parse_error
            invalid_base64 invalid_arguments channel_not_found user_not_found is_archived not_in_channel
            resource_missing parameter_invalid_empty parameter_missing parameter_unknown url_invalid
            """
        ),
    ),
    row("ai.idempotency", "BUSY", provider_code=("lock_timeout", "idempotency_key_in_use")),
    row(
        "pay.declined",
        "QUOTA",
        provider_code=split_names(
            """
            card_declined insufficient_funds expired_card incorrect_cvc payment_intent_payment_attempt_failed
            balance_insufficient authentication_required
            """
        ),
    ),
)

_AZURE = (
    row(
        "azure.busy",
        "RATE_LIMITED",
        provider_code=split_names(
            """
            ServerBusy TooManyRequests EgressIsOverAccountLimit IngressIsOverAccountLimit
            SubscriptionRequestsThrottled
            """
        ),
    ),
    row(
        "azure.lease",
        "BUSY",
        provider_code=split_names(
            """
            LeaseIdMissing LeaseAlreadyPresent BlobBeingRehydrated PendingCopyOperation AnotherOperationInProgress
            ContainerBeingDeleted RetryableError
            """
        ),
    ),
    row(
        "azure.no-room",
        "SERVICE_FULL",
        provider_code=split_names(
            "AllocationFailed ZonalAllocationFailed OverconstrainedAllocationRequest"
        ),
    ),
    row(
        "azure.quota",
        "QUOTA",
        provider_code=split_names(
            "QuotaExceeded ReadOnlyDisabledSubscription AccountQuotaExceeded"
        ),
    ),
    row(
        "azure.auth",
        "AUTH",
        provider_code=split_names(
            """
            InvalidAuthenticationTokenTenant AuthenticationFailedInvalidHeader NoAuthenticationInformation
            InvalidApiKey CredentialUnavailable AADSTS*
            """
        ),
    ),
    row(
        "azure.exists",
        "ALREADY_EXISTS",
        provider_code=split_names(
            """
            BlobAlreadyExists ContainerAlreadyExists ConditionNotMet ResourceAlreadyExists BlobImmutableDueToPolicy
            """
        ),
    ),
)

_SPECIAL_CASES = (
    row(
        "azure.auth-for-now",
        "HTTP_5XX",
        provider_code=split_names("AADSTS90033 AADSTS90012 AADSTS90013 AADSTS900432"),
    ),
    row(
        "azure.active",
        "BUSY",
        provider_code=split_names(
            "DeploymentActive OperationInProgress AnotherOperationInProgress"
        ),
    ),
    row(
        "aws.conflict-inside",
        "DATABASE_CONFLICT",
        provider_code="TransactionCanceledException",
        message=(
            r"\bTransactionConflict\b",
            r"\bThrottlingError\b",
            r"\bProvisionedThroughputExceeded\b",
        ),
    ),
    row("aws.cancelled", "ALREADY_EXISTS", provider_code="TransactionCanceledException"),
    row(
        "aws.in-progress",
        "BUSY",
        provider_code=("ValidationError", "InvalidParameterException"),
        message=(r"_IN_PROGRESS\b", r"\bno container instances were found\b"),
    ),
    row("aws.over-limit", "RATE_LIMITED", provider_code=("OverLimit", "ExpiredIteratorException")),
)

RULES = (*_SPECIAL_CASES, *_AI, *_GOOGLE, *_AZURE, *_AWS)
